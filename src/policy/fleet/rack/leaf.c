/* SPDX-License-Identifier: Apache-2.0 */
/* leaf: settings that stand in an inventory or are computed, each with its section, key, and value as TOML. */
#include <string.h>

#include "base/json/json.h"
#include "policy/fleet/rack/rack.h"

bool rack_quote(struct cgn_buf *out, struct cgn_str s)
{
	struct json_out o = json_out_to(out); /* A string of JSON is one of TOML. */
	if (!cgn_utf8_valid(s.p, s.n))
		return false;
	for (size_t i = 0; i < s.n; i++)
		if ((unsigned char)s.p[i] < ' ' || s.p[i] == 0x7f)
			return false;
	json_put_str(&o, s);
	return true;
}

static struct rack_leaf *leaf_at(const struct rack_leaves *in, const char *section, const char *key)
{
	for (size_t i = 0; i < in->n; i++)
		if (strcmp(in->list[i].section, section) == 0 && strcmp(in->list[i].key, key) == 0)
			return &in->list[i];
	return NULL;
}

const char *rack_leaf_find(const struct rack_leaves *in, const char *section, const char *key)
{
	const struct rack_leaf *l = leaf_at(in, section, key);
	return l != NULL ? l->value : NULL;
}

CGN_RC rack_leaf_put(struct rack *r, struct rack_leaves *to, const struct rack_leaf *leaf,
	struct cgn_err *err)
{
	struct rack_leaf *l = leaf_at(to, leaf->section, leaf->key);
	if (to->list == NULL) {
		to->list = cgn_arena_zero(&r->arena, RACK_MAX_SETTINGS * sizeof *to->list);
		to->room = to->list != NULL ? RACK_MAX_SETTINGS : 0;
	}
	if (l == NULL && to->n == to->room)
		return CGN_FAIL(err, TOO_LARGE, "a host has more than %d settings", RACK_MAX_SETTINGS);
	if (l == NULL)
		l = &to->list[to->n++];
	*l = *leaf;
	return CGN_OK;
}
