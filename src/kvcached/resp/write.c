/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that store values. A small value is in the command's text. For a large one a writer was opened
 * when its length was known; it has the whole value when the command runs. */
#include <stdlib.h>

#include "kvcached/resp/command_priv.h"

static CGN_RC write_key(const struct resp_conn *c, size_t key_at, struct block_key *k,
	struct block_meta *meta, struct cgn_err *err)
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
	CGN_TRY(write_key(c, key_at, &k, &meta, err));
	return kvstore_put(c->port->store, &k, &meta, size, out, err);
}

void resp_fault_set(struct resp_conn *c, const struct cgn_err *err)
{
	if (c->fault[0] != '\0')
		return;
	if (err->code == CGN_OVERLOADED || err->code == CGN_NO_MEMORY)
		(void)snprintf(c->fault, sizeof c->fault,
			"OOM command not allowed when used memory > 'maxmemory': %.70s", err->msg);
	else if (err->code == CGN_FORBIDDEN)
		(void)snprintf(c->fault, sizeof c->fault, "NOPERM %.118s", err->msg);
	else
		(void)snprintf(c->fault, sizeof c->fault, "ERR %.120s", err->msg);
}

static bool values_grow(struct resp_conn *c)
{
	if (c->values.n < c->values.cap)
		return true;
	uint32_t cap = c->values.cap > 0 ? 2 * c->values.cap : 2;
	struct kvstore_writer **more = realloc(c->values.list, cap * sizeof *more);
	if (more == NULL)
		return false;
	c->values.list = more;
	c->values.cap = cap;
	return true;
}

void resp_values_drop(struct resp_conn *c)
{
	for (uint32_t i = 0; i < c->values.n; i++)
		kvstore_writer_abort(&c->values.list[i]);
	c->values.n = 0;
	c->values.writer = NULL;
	kvstore_block_unref(&c->fetched);
	resp_unhold(c->port, RESP_ARRIVES, c->values.held);
	c->values.held = 0;
}

/* Returns false when the command must wait. A command that already has values fails instead of waiting, as
 * others may wait for what it holds. */
static bool value_hold_bytes(struct resp_conn *c)
{
	uint64_t held = 0;
	if (c->values.held == 0 && !resp_hold(c, RESP_ARRIVES, c->cmd.value, &held))
		return false;
	if (c->values.held > 0 && !resp_hold_now(c, RESP_ARRIVES, c->cmd.value, &held)) {
		struct cgn_err err;
		(void)CGN_FAIL(&err, OVERLOADED, "no room now for all of its values at once");
		resp_fault_set(c, &err);
		resp_values_drop(c);
		return true;
	}
	c->values.held += held;
	return true;
}

bool resp_value_begins(struct resp_conn *c)
{
	const struct respcmd_row *row = &respcmd_rows[c->cmd.id];
	size_t at = c->cmd.n - 1;
	struct cgn_err err = {0};
	if (c->authed && c->fault[0] == '\0' && !cgn_ok(resp_may(c, &err)))
		resp_fault_set(c, &err);
	bool skip = !c->authed || c->fault[0] != '\0'; /* the command fails anyway */
	if (!skip && c->cmd.value <= BLOCK_MAX_BYTES && !value_hold_bytes(c))
		return false;
	c->values.writer = NULL;
	skip = skip || c->fault[0] != '\0';
	bool well = values_grow(c) || cgn_ok(CGN_FAIL(&err, NO_MEMORY, "out of memory"));
	if (well && !skip)
		well = cgn_ok(value_open(c, row->value_step > 0 ? at - 1 : (size_t)row->first, c->cmd.value,
			&c->values.writer, &err));
	if (!well)
		resp_fault_set(c, &err);
	if (c->values.n < c->values.cap)
		c->values.list[c->values.n++] = c->values.writer;
	return true;
}

static struct kvstore_writer *values_take(struct resp_conn *c, uint32_t n)
{
	struct kvstore_writer *w = c->values.list[n];
	c->values.list[n] = NULL;
	return w;
}

static void write_fail(struct resp_conn *c, const struct cgn_err *err)
{
	resp_fault_set(c, err);
	resp_error(c, c->fault);
}

/* Open or take the writer of the value in argument |i|; all bytes are in it. Returns false after an error
 * reply. */
static bool value_take(struct resp_conn *c, size_t key_at, size_t i, struct kvstore_writer **out)
{
	struct respcmd_arg a = c->cmd.args[i];
	struct cgn_err err = {0};
	if (a.at == RESPCMD_IS_APART) {
		*out = values_take(c, a.n);
		return true;
	}
	struct cgn_str s = resp_arg(c, i);
	if (cgn_ok(value_open(c, key_at, s.n, out, &err))) {
		kvstore_writer_add(*out, s.p, s.n);
		return true;
	}
	write_fail(c, &err);
	return false;
}

/* Store argument |i| as the value of |k|. |old| not NULL: *old becomes the value that the key had;
 * CGN_UNAVAILABLE as in kvstore_writer_exchange, and the call may be repeated. */
static CGN_RC value_set(struct resp_conn *c, const struct block_key *k, const struct block_meta *meta,
	size_t i, unsigned how, struct kvstore_block **old, struct cgn_err *err)
{
	struct kvstore *store = c->port->store;
	struct respcmd_arg a = c->cmd.args[i];
	struct cgn_str s = resp_arg(c, i);
	if (a.at != RESPCMD_IS_APART && old != NULL)
		return kvstore_exchange(store, k, meta, s.p, s.n, how, old, err);
	if (a.at != RESPCMD_IS_APART)
		return kvstore_set(store, k, meta, s.p, s.n, how, err);
	struct kvstore_writer **w = &c->values.list[a.n];
	kvstore_writer_expires(*w, meta->expires_unix_ms); /* not known when the writer was opened */
	return old != NULL ? kvstore_writer_exchange(w, how, old, err)
			   : kvstore_writer_commit(w, NULL, how, err);
}

static void write_old_value(struct resp_conn *c, struct kvstore_block **old)
{
	if (*old != NULL)
		resp_block(c, old, 0, -1);
	else
		resp_nil(c);
}

static unsigned write_conditions(struct respcmd_set o)
{
	return (o.only_new ? KVSTORE_IF_ABSENT : 0U) | (o.only_old ? KVSTORE_IF_HELD : 0U) |
		(o.keep_ttl ? KVSTORE_KEEP_EXPIRY : 0U);
}

/* SET and its variants; |value_at| is the argument of the value. */
static enum resp_did write_set(struct resp_conn *c, size_t value_at, struct respcmd_set o, const char *well,
	const char *not_done)
{
	struct block_key k;
	struct block_meta meta;
	struct kvstore_block *old = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(write_key(c, 1, &k, &meta, &err))) {
		write_fail(c, &err);
		return RESP_DONE;
	}
	if (c->fetch != NULL)
		return RESP_LATER;
	meta.expires_unix_ms = o.expires_unix_ms;
	bool did = cgn_ok(value_set(c, &k, &meta, value_at, write_conditions(o), o.get ? &old : NULL, &err));
	if (!did && err.code == CGN_UNAVAILABLE)
		return resp_fetch(c, &k);
	if (!did && err.code != CGN_CONFLICT && err.code != CGN_NOT_FOUND) {
		write_fail(c, &err);
		return RESP_DONE;
	}
	if (o.get)
		write_old_value(c, &old);
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
	return write_set(c, 2, o, "+OK\r\n", NULL);
}

enum resp_did resp_setnx(struct resp_conn *c)
{
	return write_set(c, 2, (struct respcmd_set){.only_new = true}, ":1\r\n", ":0\r\n");
}

enum resp_did resp_getset(struct resp_conn *c)
{
	return write_set(c, 2, (struct respcmd_set){.get = true}, NULL, NULL);
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
	return write_set(c, 3, o, "+OK\r\n", NULL);
}

/* All values get memory before the first one is visible, so a lack of room changes nothing; then all become
 * visible in one step. */
enum resp_did resp_mset(struct resp_conn *c)
{
	bool only_new = c->cmd.id == RESPCMD_MSETNX, did = false;
	if (c->cmd.n % 2 == 0) {
		resp_fmt(c, "-ERR wrong number of arguments for '%s' command\r\n",
			respcmd_rows[c->cmd.id].name);
		return RESP_DONE;
	}
	size_t n = c->cmd.n / 2, have = 0;
	struct cgn_err err = {0};
	struct kvstore_writer **w = calloc(n, sizeof(struct kvstore_writer *));
	if (w == NULL)
		resp_error(c, "ERR out of memory");
	while (w != NULL && have < n && value_take(c, 1 + 2 * have, 2 + 2 * have, &w[have]))
		have++;
	if (have == n)
		did = cgn_ok(kvstore_commit_all(w, n, only_new ? KVSTORE_IF_ABSENT : 0, &err));
	if (have == n && !did && err.code != CGN_CONFLICT)
		write_fail(c, &err);
	else if (have == n)
		resp_putz(c, !only_new ? "+OK\r\n" : did ? ":1\r\n" : ":0\r\n");
	for (size_t i = 0; i < have; i++)
		kvstore_writer_abort(&w[i]);
	free(w);
	return RESP_DONE;
}
