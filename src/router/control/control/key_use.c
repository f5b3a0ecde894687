/* SPDX-License-Identifier: Apache-2.0 */
/* key_use: when API keys were used last. The set of keys notes it; this keeps it over restarts, in a file of
 * cluster.state_dir that is written at most once a minute, and tells it at /keys of the admin port. */
#include "base/seal/seal.h"
#include "joint/cluster/statefile/statefile.h"
#include "router/control/control/router.h"

#define USE_KIND   "cognitora-key-use"
#define USE_FORMAT 1
#define FILE_MAX   ((size_t)256 << 20) /* AUTH_MAX_KEYS lines fit. */
#define EVERY      (60 * CGN_SEC)
#define MOST_TOLD  100000

static bool use_text(const struct router_keys *k, struct cgn_buf *out)
{
	if (k->set == NULL || auth_keys_uses(k->set) == k->uses_written)
		return false;
	seal_begin(out, USE_KIND, USE_FORMAT);
	auth_keys_used_put(k->set, out);
	seal_end(out);
	return !out->bad;
}

static void use_write(struct cgn_timer *t)
{
	struct router *r = CGN_CONTAINER(t, struct router, keys.use_timer);
	struct cgn_buf text = {.n = 0};
	CGN_LIVE(r, ROUTER_TAG);
	uint64_t uses = r->keys.set != NULL ? auth_keys_uses(r->keys.set) : 0;
	if (!statefile_is_busy(r->keys.use_file) && use_text(&r->keys, &text)) {
		r->keys.uses_written = uses; /* Later ones are written the next time. */
		statefile_write(r->keys.use_file, &text);
	}
	cgn_buf_fini(&text);
	cgn_timer_set(t, EVERY);
}

void router_key_use_open(struct router *r, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_err why;
	struct cgn_str lines;
	if (r->keys.set == NULL)
		return;
	r->keys.use_file = statefile_open(r->loop, path, "the last use of keys");
	cgn_timer_init(&r->keys.use_timer, r->loop, use_write);
	cgn_timer_set(&r->keys.use_timer, EVERY);
	r->keys.uses_written = auth_keys_uses(r->keys.set);
	if (!statefile_read(r->keys.use_file, FILE_MAX, &text))
		return;
	cgn_rc rc = seal_open(cgn_buf_view(&text), USE_KIND, USE_FORMAT, &lines, &why);
	if (cgn_ok(rc))
		auth_keys_used_read(r->keys.set, lines);
	else
		statefile_set_aside(r->keys.use_file, why.msg);
}

void router_key_use_close(struct router *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	if (r->keys.use_file == NULL)
		return;
	cgn_timer_cancel(&r->keys.use_timer);
	statefile_close(&r->keys.use_file, use_text(&r->keys, &text) ? &text : NULL);
}

CGN_RC router_key_use_move(const struct auth_keys *old, struct auth_keys *fresh, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	auth_keys_used_put(old, &text);
	if (text.bad)
		return CGN_FAIL(err, NO_MEMORY, "no memory to remember when keys were used");
	auth_keys_used_read(fresh, cgn_buf_view(&text));
	return CGN_OK;
}

void router_keys_fill(const struct router *r, struct pb_tree *t, Cognitora__V1__KeyUses *to)
{
	size_t n = r->keys.set != NULL ? auth_keys_count(r->keys.set) : 0;
	struct auth_key key;
	for (size_t i = 0; i < n && to->n_keys < MOST_TOLD && !t->bad; i++) {
		uint64_t at = auth_keys_used_at(r->keys.set, i);
		if (at == 0)
			continue;
		auth_keys_at(r->keys.set, i, &key);
		Cognitora__V1__KeyUse *use = PB_ADD(t, to, keys, key_use);
		use->id = pb_tree_text(t, cgn_str_of(key.id));
		use->last_used = at;
	}
	to->whole = to->n_keys < MOST_TOLD;
}
