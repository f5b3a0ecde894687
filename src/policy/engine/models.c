/* SPDX-License-Identifier: Apache-2.0 */
/* models: read an engine's list of models. */
#include "base/json/json.h"
#include "policy/engine/engine.h"

struct model_list {
	struct cgn_arena *a;
	const char **v;
	size_t n, max;
	bool bad;
};

static void model_add(struct model_list *l, struct json_val v)
{
	if (v.type != JSON_STRING || l->bad)
		return;
	struct cgn_str name = json_str(v, l->a);
	if (name.n == 0 || memchr(name.p, '\0', name.n) != NULL)
		return;
	for (size_t i = 0; i < l->n; i++)
		if (cgn_str_is(name, l->v[i]))
			return;
	if (l->n == l->max)
		return;
	const char *z = cgn_arena_strz(l->a, name);
	l->bad = z == NULL;
	if (z != NULL)
		l->v[l->n++] = z;
}

static void model_entry(struct model_list *l, struct json_val entry)
{
	struct json_val id, aliases, alias;
	if (json_get(entry, "id", &id))
		model_add(l, id);
	if (!json_get(entry, "aliases", &aliases) || aliases.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(aliases); json_next_elem(&it, &alias);)
		model_add(l, alias);
}

CGN_RC engine_models_read(struct cgn_str body, struct cgn_arena *a, size_t max, const char ***out, size_t *n,
	struct cgn_err *err)
{
	struct json_val doc, data, entry;
	struct cgn_err why = {0};
	struct model_list l = {.a = a, .v = cgn_arena_get(a, max * sizeof(char *)), .max = max};
	if (l.v == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no room for %zu model names", max);
	if (!cgn_ok(json_parse(body, &doc, NULL, &why)))
		return CGN_FAIL(err, BAD_GATEWAY, "/v1/models is not JSON: %.200s", why.msg);
	if (!json_get(doc, "data", &data) || data.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "/v1/models has no \"data\" list");
	for (struct json_iter it = json_iter_of(data); json_next_elem(&it, &entry);)
		model_entry(&l, entry);
	if (l.bad)
		return CGN_FAIL(err, NO_MEMORY, "no room for the model names");
	*out = l.v;
	*n = l.n;
	return CGN_OK;
}
