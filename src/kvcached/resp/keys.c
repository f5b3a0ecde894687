/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about keys: existence, length, expiry, SCAN. */
#include "base/codec/codec.h"
#include "kvcached/resp/command_priv.h"

#define SCAN_MOST 1024 /* keys per SCAN: limits its reply to little over a MiB */

enum resp_did resp_exists(struct resp_conn *c)
{
	struct block_key k;
	struct block_info info;
	struct cgn_str name;
	int64_t n = 0;
	for (size_t i = 1; i < c->cmd.n; i++) {
		if (!resp_key(c, i, &k, &name))
			return RESP_DONE;
		n += kvstore_lookup(c->port->store, &k, &info);
	}
	resp_int(c, n);
	return RESP_DONE;
}

enum resp_did resp_del(struct resp_conn *c)
{
	struct block_key k;
	struct cgn_str name;
	int64_t n = 0;
	for (size_t i = 1; i < c->cmd.n; i++) {
		if (!resp_key(c, i, &k, &name))
			return RESP_DONE;
		n += kvstore_remove(c->port->store, &k);
	}
	resp_int(c, n);
	return RESP_DONE;
}

/* Look up the key in argument 1. Returns 1 when it is held, 0 when not, -1 after an error reply. */
static int key_lookup(struct resp_conn *c, struct block_key *k, struct block_info *info)
{
	struct cgn_str name;
	return resp_key(c, 1, k, &name) ? kvstore_lookup(c->port->store, k, info) : -1;
}

enum resp_did resp_strlen(struct resp_conn *c)
{
	struct block_key k;
	struct block_info info = {0};
	int held = key_lookup(c, &k, &info);
	if (held >= 0)
		resp_int(c, held ? (int64_t)info.size : 0);
	return RESP_DONE;
}

enum resp_did resp_type(struct resp_conn *c)
{
	struct block_key k;
	struct block_info info;
	int held = key_lookup(c, &k, &info);
	if (held >= 0)
		resp_putz(c, held ? "+string\r\n" : "+none\r\n");
	return RESP_DONE;
}

enum resp_did resp_ttl(struct resp_conn *c)
{
	struct block_key k;
	struct block_info info = {0};
	int held = key_lookup(c, &k, &info);
	/* read after the lookup, so it is not before a concurrent change */
	uint64_t now = cgn_clock_wall_ms();
	if (held < 0)
		return RESP_DONE;
	int64_t left = info.expires_unix_ms > now ? (int64_t)(info.expires_unix_ms - now) : 0;
	if (c->cmd.id == RESPCMD_TTL)
		left = (left + 500) / 1000;
	resp_int(c, !held ? -2 : info.expires_unix_ms == 0 ? -1 : left);
	return RESP_DONE;
}

enum resp_did resp_persist(struct resp_conn *c)
{
	struct block_key k;
	struct block_info info = {0};
	int held;
	do { /* until no other client changes the expiry in between */
		held = key_lookup(c, &k, &info);
	} while (held > 0 && info.expires_unix_ms != 0 &&
		!kvstore_expire(c->port->store, &k, info.expires_unix_ms, 0));
	if (held >= 0)
		resp_int(c, held && info.expires_unix_ms != 0);
	return RESP_DONE;
}

struct expire_when {
	bool nx, xx, gt, lt;
};

static bool expire_options(struct resp_conn *c, struct expire_when *o)
{
	*o = (struct expire_when){0};
	for (size_t i = 3; i < c->cmd.n; i++) {
		o->nx |= resp_arg_is(c, i, "nx");
		o->xx |= resp_arg_is(c, i, "xx");
		o->gt |= resp_arg_is(c, i, "gt");
		o->lt |= resp_arg_is(c, i, "lt");
		if (resp_arg_is(c, i, "nx") || resp_arg_is(c, i, "xx") || resp_arg_is(c, i, "gt") ||
			resp_arg_is(c, i, "lt"))
			continue;
		struct cgn_str s = resp_arg(c, i);
		if (s.n > 64 || memchr(s.p, '\r', s.n) != NULL || memchr(s.p, '\n', s.n) != NULL)
			resp_error(c, "ERR Unsupported option");
		else
			resp_fmt(c, "-ERR Unsupported option %.*s\r\n", CGN_STR_ARG(s));
		return false;
	}
	if (o->nx && (o->xx || o->gt || o->lt))
		resp_error(c, "ERR NX and XX, GT or LT options at the same time are not compatible");
	else if (o->gt && o->lt)
		resp_error(c, "ERR GT and LT options at the same time are not compatible");
	else
		return true;
	return false;
}

static bool expire_applies(const struct expire_when *o, uint64_t old, uint64_t wanted)
{
	if ((o->nx && old != 0) || (o->xx && old == 0))
		return false;
	if (o->gt && (old == 0 || wanted <= old)) /* no expiry counts as later than any time */
		return false;
	return !o->lt || old == 0 || wanted < old;
}

enum resp_did resp_expire(struct resp_conn *c)
{
	bool seconds = c->cmd.id == RESPCMD_EXPIRE || c->cmd.id == RESPCMD_EXPIREAT;
	bool at = c->cmd.id == RESPCMD_EXPIREAT || c->cmd.id == RESPCMD_PEXPIREAT;
	struct expire_when o;
	struct block_key k;
	struct block_info info = {0};
	int64_t amount;
	uint64_t now = cgn_clock_wall_ms(), wanted = 0;
	if (!resp_number(c, 2, &amount) || !expire_options(c, &o))
		return RESP_DONE;
	if (amount > 0 && !respcmd_expiry(amount, seconds ? 1000 : 1, at ? 0 : now, &wanted)) {
		resp_fmt(c, "-ERR invalid expire time in '%s' command\r\n", respcmd_rows[c->cmd.id].name);
		return RESP_DONE;
	}
	bool applies;
	int held;
	do { /* until no other client changes the expiry in between */
		held = key_lookup(c, &k, &info);
		applies = held > 0 && expire_applies(&o, info.expires_unix_ms, wanted);
	} while (applies &&
		!kvstore_expire(c->port->store, &k, info.expires_unix_ms, wanted > 0 ? wanted : 1));
	if (applies && wanted <= now)
		(void)kvstore_lookup(c->port->store, &k, &info); /* removes an expired value */
	if (held >= 0)
		resp_int(c, applies);
	return RESP_DONE;
}

/* ---- SCAN ---- */

struct scan {
	struct cgn_str match; /* p NULL: no pattern */
	struct cgn_buf keys;  /* bulk strings */
	size_t n;
};

static void scan_one(void *user, const struct block_key *k, const struct block_info *info,
	struct cgn_str name)
{
	struct scan *s = user;
	char text[2 * DIGEST_BYTES + 12];
	struct cgn_buf own = cgn_buf_over(text, sizeof text);
	(void)info;
	if (name.n == 0) {
		hex_put(&own, (struct cgn_str){(const char *)k->digest.b, DIGEST_BYTES});
		if (k->segment != 0)
			cgn_buf_fmt(&own, ":%u", k->segment);
		name = cgn_buf_view(&own);
	}
	if (s->match.p != NULL && !cgn_str_glob(s->match, name))
		return;
	cgn_buf_fmt(&s->keys, "$%zu\r\n", name.n);
	cgn_buf_str(&s->keys, name);
	cgn_buf_putz(&s->keys, "\r\n");
	s->n++;
}

struct scan_ask {
	uint64_t cursor, count;
	bool none; /* TYPE names a type that no key has */
	struct cgn_str match;
};

static bool scan_ask(struct resp_conn *c, struct scan_ask *out)
{
	*out = (struct scan_ask){.count = 10};
	if (!cgn_str_u64(resp_arg(c, 1), &out->cursor)) {
		resp_error(c, "ERR invalid cursor");
		return false;
	}
	for (size_t i = 2; i < c->cmd.n; i += 2) {
		int64_t count;
		if (i + 1 < c->cmd.n && resp_arg_is(c, i, "match")) {
			out->match = resp_arg(c, i + 1);
		} else if (i + 1 < c->cmd.n && resp_arg_is(c, i, "type")) {
			out->none = !resp_arg_is(c, i + 1, "string");
		} else if (i + 1 < c->cmd.n && resp_arg_is(c, i, "count")) {
			if (!resp_number(c, i + 1, &count))
				return false;
			out->count = count < 1 ? 0 : count < SCAN_MOST ? (uint64_t)count : SCAN_MOST;
		} else {
			out->count = 0;
		}
		if (out->count > 0)
			continue;
		resp_error(c, "ERR syntax error");
		return false;
	}
	return true;
}

enum resp_did resp_scan(struct resp_conn *c)
{
	struct scan_ask ask;
	if (!scan_ask(c, &ask))
		return RESP_DONE;
	struct scan s = {.match = ask.match};
	char cursor[24];
	if (ask.none)
		ask.cursor = 0;
	else
		kvstore_scan(c->port->store, &ask.cursor, ask.count, scan_one, &s);
	(void)snprintf(cursor, sizeof cursor, "%llu", (unsigned long long)ask.cursor);
	if (s.keys.bad) {
		resp_error(c, "ERR out of memory");
	} else {
		resp_array(c, 2);
		resp_bulk(c, cgn_str_of(cursor));
		resp_array(c, s.n);
		resp_put(c, s.keys.p, s.keys.n);
	}
	cgn_buf_fini(&s.keys);
	return RESP_DONE;
}
