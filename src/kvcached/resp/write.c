/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that put values. A small one is in the command's text; of a large one a writer was opened when its
 * length was known, and it holds all of it when the command runs. */
#include <stdlib.h>

#include "kvcached/resp/resp_priv.h"

static CGN_RC key_of(const struct resp_conn *c, size_t key_at, struct block_key *k, struct block_meta *meta,
	struct cgn_err *err)
{
	struct cgn_str key = resp_arg(c, key_at);
	if (key.n > BLOCK_MAX_NAME)
		return CGN_FAIL(err, INVALID, "a key of %zu bytes: at most %d", key.n, BLOCK_MAX_NAME);
	*meta = (struct block_meta){.created_unix_ms = cgn_clock_wall_ms()};
	if (!respcmd_key(key, &k->digest, &k->segment))
		meta->name = key;
	return CGN_OK;
}

static CGN_RC value_open(struct resp_conn *c, size_t key_at, uint64_t size, struct kvstore_writer **out,
	struct cgn_err *err)
{
	struct block_key k;
	struct block_meta meta;
	CGN_TRY(key_of(c, key_at, &k, &meta, err));
	return kvstore_put(c->port->store, &k, &meta, size, out, err);
}

static void fault_set(struct resp_conn *c, const struct cgn_err *err)
{
	if (c->fault[0] != '\0')
		return;
	if (err->code == CGN_OVERLOADED || err->code == CGN_NO_MEMORY)
		(void)snprintf(c->fault, sizeof c->fault,
			"OOM command not allowed when used memory > 'maxmemory': %.70s", err->msg);
	else
		(void)snprintf(c->fault, sizeof c->fault, "ERR %.120s", err->msg);
}

static bool apart_room(struct resp_conn *c)
{
	if (c->n_apart < c->cap_apart)
		return true;
	uint32_t cap = c->cap_apart > 0 ? 2 * c->cap_apart : 2;
	struct kvstore_writer **more = realloc(c->apart, cap * sizeof *more);
	if (more == NULL)
		return false;
	c->apart = more;
	c->cap_apart = cap;
	return true;
}

void resp_values_drop(struct resp_conn *c)
{
	for (uint32_t i = 0; i < c->n_apart; i++)
		kvstore_writer_abort(&c->apart[i]);
	c->n_apart = 0;
	c->writer = NULL;
	c->fetch_done = false;
	kvstore_block_unref(&c->fetched);
	resp_unhold(c->port, RESP_ARRIVES, c->arriving);
	c->arriving = 0;
}

/* False: it has to wait. Who has values already does not wait for more, because others may wait for his. */
static bool hold_value(struct resp_conn *c)
{
	uint64_t held = 0;
	if (c->arriving == 0 && !resp_hold(c, RESP_ARRIVES, c->cmd.value, &held))
		return false;
	if (c->arriving > 0 && !resp_hold_now(c, RESP_ARRIVES, c->cmd.value, &held)) {
		struct cgn_err err;
		(void)CGN_FAIL(&err, OVERLOADED, "no room now for all of its values at once");
		fault_set(c, &err);
		resp_values_drop(c);
		return true;
	}
	c->arriving += held;
	return true;
}

bool resp_value_begins(struct resp_conn *c)
{
	const struct respcmd_row *row = &respcmd_rows[c->cmd.id];
	size_t at = c->cmd.n - 1;
	struct cgn_err err = {0};
	bool skip = !c->authed || c->fault[0] != '\0'; /* it fails anyhow */
	if (!skip && c->cmd.value <= BLOCK_MAX_BYTES && !hold_value(c))
		return false;
	c->writer = NULL;
	skip = skip || c->fault[0] != '\0';
	bool well = apart_room(c) || cgn_ok(CGN_FAIL(&err, NO_MEMORY, "out of memory"));
	if (well && !skip)
		well = cgn_ok(value_open(c, row->value_step > 0 ? at - 1 : (size_t)row->first, c->cmd.value,
			&c->writer, &err));
	if (!well)
		fault_set(c, &err);
	if (c->n_apart < c->cap_apart)
		c->apart[c->n_apart++] = c->writer;
	return true;
}

static struct kvstore_writer *apart_take(struct resp_conn *c, uint32_t n)
{
	struct kvstore_writer *w = c->apart[n];
	c->apart[n] = NULL;
	return w;
}

static void failed(struct resp_conn *c, const struct cgn_err *err)
{
	fault_set(c, err);
	resp_error(c, c->fault);
}

/* The value in argument |i|, whole and with nobody seeing it yet. False: it failed, which was answered. */
static bool value_take(struct resp_conn *c, size_t key_at, size_t i, struct kvstore_writer **out)
{
	struct respcmd_arg a = c->cmd.args[i];
	struct cgn_err err = {0};
	if (a.at == RESPCMD_IS_APART) {
		*out = apart_take(c, a.n);
		return true;
	}
	struct cgn_str s = resp_arg(c, i);
	if (cgn_ok(value_open(c, key_at, s.n, out, &err))) {
		kvstore_writer_add(*out, s.p, s.n);
		return true;
	}
	failed(c, &err);
	return false;
}

/* What argument |i| has becomes the value of |k|. */
static CGN_RC value_set(struct resp_conn *c, const struct block_key *k, const struct block_meta *meta,
	size_t i, unsigned how, struct cgn_err *err)
{
	struct respcmd_arg a = c->cmd.args[i];
	struct cgn_str s = resp_arg(c, i);
	if (a.at != RESPCMD_IS_APART)
		return kvstore_set(c->port->store, k, meta, s.p, s.n, how, err);
	struct kvstore_writer *w = apart_take(c, a.n);
	kvstore_writer_expires(w, meta->expires_unix_ms); /* which nobody knew when it began */
	return kvstore_writer_commit(&w, NULL, how, err);
}

static void old_value(struct resp_conn *c)
{
	if (c->fetched != NULL)
		resp_block(c, &c->fetched, 0, -1);
	else
		resp_nil(c);
}

static unsigned how_of(struct respcmd_set o)
{
	return (o.only_new ? KVSTORE_IF_ABSENT : 0U) | (o.only_old ? KVSTORE_IF_HELD : 0U) |
		(o.keep_ttl ? KVSTORE_KEEP_EXPIRY : 0U);
}

/* SET and what is a SET by another name: |value_at| is the value's place. */
static enum resp_did set_with(struct resp_conn *c, size_t value_at, struct respcmd_set o, const char *well,
	const char *not_done)
{
	struct block_key k;
	struct block_meta meta;
	struct cgn_err err = {0};
	if (!cgn_ok(key_of(c, 1, &k, &meta, &err))) {
		failed(c, &err);
		return RESP_DONE;
	}
	if (o.get && resp_fetch(c, &k) == RESP_LATER)
		return RESP_LATER;
	meta.expires_unix_ms = o.expires_unix_ms;
	bool did = cgn_ok(value_set(c, &k, &meta, value_at, how_of(o), &err));
	if (!did && err.code != CGN_CONFLICT && err.code != CGN_NOT_FOUND) {
		failed(c, &err);
		return RESP_DONE;
	}
	if (o.get)
		old_value(c);
	else if (did)
		resp_putz(c, well);
	else if (not_done != NULL)
		resp_putz(c, not_done);
	else
		resp_nil(c);
	return RESP_DONE;
}

enum resp_did resp_set(struct resp_conn *c)
{
	struct respcmd_set o;
	const char *wrong =
		respcmd_set_options(&c->cmd, c->text, 3, c->cmd.n > 3 ? cgn_clock_wall_ms() : 0, &o);
	if (wrong != NULL) {
		resp_error(c, wrong);
		return RESP_DONE;
	}
	return set_with(c, 2, o, "+OK\r\n", NULL);
}

enum resp_did resp_setnx(struct resp_conn *c)
{
	return set_with(c, 2, (struct respcmd_set){.only_new = true}, ":1\r\n", ":0\r\n");
}

enum resp_did resp_getset(struct resp_conn *c)
{
	return set_with(c, 2, (struct respcmd_set){.get = true}, NULL, NULL);
}

enum resp_did resp_setex(struct resp_conn *c)
{
	struct respcmd_set o = {0};
	int64_t amount;
	bool seconds = c->cmd.id == RESPCMD_SETEX;
	if (!resp_number(c, 2, &amount))
		return RESP_DONE;
	if (!respcmd_expiry(amount, seconds ? 1000 : 1, cgn_clock_wall_ms(), &o.expires_unix_ms)) {
		resp_fmt(c, "-ERR invalid expire time in '%s' command\r\n", seconds ? "setex" : "psetex");
		return RESP_DONE;
	}
	return set_with(c, 3, o, "+OK\r\n", NULL);
}

static bool any_held(struct resp_conn *c, bool *bad)
{
	struct block_key k;
	struct block_info info;
	struct cgn_str name;
	*bad = false;
	for (size_t i = 1; i < c->cmd.n; i += 2) {
		if (!resp_key(c, i, &k, &name)) {
			*bad = true;
			return false;
		}
		if (kvstore_lookup(c->port->store, &k, &info))
			return true;
	}
	return false;
}

/* All or none as far as room goes: what does not fit is found before the first is seen. */
enum resp_did resp_mset(struct resp_conn *c)
{
	bool only_new = c->cmd.id == RESPCMD_MSETNX, bad = false;
	if (c->cmd.n % 2 == 0) {
		resp_fmt(c, "-ERR wrong number of arguments for '%s' command\r\n",
			respcmd_rows[c->cmd.id].name);
		return RESP_DONE;
	}
	if (only_new && any_held(c, &bad)) {
		resp_int(c, 0);
		return RESP_DONE;
	}
	size_t n = c->cmd.n / 2, have = 0, done = 0;
	struct cgn_err err = {0};
	struct kvstore_writer **w = calloc(n, sizeof(struct kvstore_writer *));
	if (w == NULL)
		resp_error(c, "ERR out of memory");
	while (w != NULL && !bad && have < n && value_take(c, 1 + 2 * have, 2 + 2 * have, &w[have]))
		have++;
	while (have == n && done < n && cgn_ok(kvstore_writer_commit(&w[done], NULL, 0, &err)))
		done++;
	if (have == n && done < n)
		failed(c, &err);
	for (size_t i = done; i < have; i++)
		kvstore_writer_abort(&w[i]);
	free(w);
	if (done == n)
		resp_putz(c, only_new ? ":1\r\n" : "+OK\r\n");
	return RESP_DONE;
}
