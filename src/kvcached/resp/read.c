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
	(void)why;
	c->fetch = NULL;
	c->fetched = *take;
	*take = NULL;
	c->fetch_done = true;
	c->resume(c);
}

enum resp_did resp_fetch(struct resp_conn *c, const struct block_key *k)
{
	struct block_info info;
	struct cgn_err err;
	if (c->fetch != NULL)
		return RESP_LATER;
	struct kvcached *d = c->port->worker->daemon;
	if (c->fetch_done || (c->fetched = kvstore_get_ram(d->store, k, true)) != NULL ||
		!value_lookup(d, k, false, &info))
		return RESP_DONE;
	if (!cgn_ok(value_get(d, c->port->loop, k, VALUE_HERE_ONLY, read_on_fetched, c, &c->fetch, &err)))
		return RESP_DONE;
	return RESP_LATER;
}

enum resp_did resp_getdel(struct resp_conn *c)
{
	struct block_key k;
	struct cgn_str name;
	if (!resp_key(c, 1, &k, &name))
		return RESP_DONE;
	if (resp_fetch(c, &k) == RESP_LATER)
		return RESP_LATER;
	/* If another client removed the key meanwhile, only one of the two gets the value. */
	if (c->fetched == NULL || !kvstore_remove(c->port->store, &k)) {
		resp_nil(c);
		return RESP_DONE;
	}
	resp_block(c, &c->fetched, 0, -1);
	return RESP_DONE;
}
