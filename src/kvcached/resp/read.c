/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that return values. */
#include "kvcached/resp/command_priv.h"

enum resp_did resp_get(struct resp_conn *c)
{
	struct block_key k;
	struct cgn_str name;
	return resp_key(c, 1, &k, &name) ? resp_value(c, &k, 0, -1, false) : RESP_DONE;
}

/* Values are added one by one, as the client takes them. */
enum resp_did resp_mget(struct resp_conn *c)
{
	struct block_key k;
	struct cgn_str name;
	if (c->step == 0) {
		resp_array(c, c->cmd.n - 1);
		c->step = 1;
	}
	for (; c->step < c->cmd.n; c->step++) {
		if (resp_full(c))
			return RESP_LATER;
		if (resp_arg(c, c->step).n > BLOCK_MAX_NAME)
			resp_nil(c); /* no command stores such a key */
		else if (resp_key(c, c->step, &k, &name) && resp_value(c, &k, 0, -1, false) == RESP_LATER)
			return RESP_LATER;
	}
	return RESP_DONE;
}

enum resp_did resp_getrange(struct resp_conn *c)
{
	struct block_key k;
	struct cgn_str name;
	int64_t first, last;
	if (resp_number(c, 2, &first) && resp_number(c, 3, &last) && resp_key(c, 1, &k, &name))
		return resp_value(c, &k, first, last, true);
	return RESP_DONE;
}

static void read_on_fetched(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct resp_conn *c = user;
	c->fetch = NULL;
	c->fetched = *take;
	*take = NULL;
	if (c->fetched == NULL && why->code != CGN_NOT_FOUND)
		resp_fault_set(c, why);
	c->resume(c);
}

enum resp_did resp_fetch(struct resp_conn *c, const struct block_key *k)
{
	if (c->fetch == NULL) {
		kvstore_block_unref(&c->fetched);
		c->fetch = value_get(c->port->worker->daemon, c->port->loop, k, VALUE_HERE_ONLY, 0,
			read_on_fetched, c);
	}
	return RESP_LATER;
}

enum resp_did resp_getdel(struct resp_conn *c)
{
	struct block_key k;
	struct cgn_str name;
	struct kvstore_block *old = NULL;
	struct cgn_err err;
	if (!resp_key(c, 1, &k, &name))
		return RESP_DONE;
	if (c->fetch != NULL)
		return RESP_LATER;
	cgn_rc rc = kvstore_take(c->port->store, &k, &old, &err);
	if (rc.code == CGN_UNAVAILABLE)
		return resp_fetch(c, &k);
	if (cgn_ok(rc))
		resp_block(c, &old, 0, -1);
	else
		resp_nil(c);
	return RESP_DONE;
}
