/* SPDX-License-Identifier: Apache-2.0 */
/* links: which objects and resources belong together, and their paths. */
#include "operator/control/control_priv.h"

void path_put(enum desired_kind kind, const char *space, const char *name, struct cgn_buf *b)
{
	const struct desired_kind_row *row = &desired_kinds[kind];
	cgn_buf_fmt(b, strchr(row->api, '/') != NULL ? "/apis/%s" : "/api/%s", row->api);
	if (space != NULL)
		cgn_buf_fmt(b, "/namespaces/%s", space);
	cgn_buf_fmt(b, "/%s", row->plural);
	if (name != NULL)
		cgn_buf_fmt(b, "/%s", name);
}

struct cluster_search {
	struct control *c;
	const char *space; /* With its slash. */
	struct item *only, *first;
	size_t n;
};

static void cluster_count(void *arg, struct item *i)
{
	struct cluster_search *s = arg;
	if (i->kind != DESIRED_CLUSTER || i->text == NULL || strncmp(i->key, s->space, strlen(s->space)) != 0)
		return;
	s->only = i;
	s->n++;
}

CGN_RC work_cluster(struct control *c, const struct item *resource, struct json_val object, struct item **out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf name = {.n = 0};
	char key[CONTROL_KEY], space[CONTROL_KEY];
	struct cluster_search s = {.c = c, .space = space};
	(void)snprintf(space, sizeof space, "%.*s", (int)strcspn(resource->key, "/") + 1, resource->key);
	desired_text(object, "cluster", NULL, "", &name);
	if (name.n > 0) {
		int n = snprintf(key, sizeof key, "%s%s", space, cgn_buf_z(&name));
		s.only = n > 0 && (size_t)n < sizeof key ? item_find(c, DESIRED_CLUSTER, key) : NULL;
		if (s.only != NULL && s.only->text != NULL) {
			*out = s.only;
			return CGN_OK;
		}
		return CGN_FAIL(err, NOT_FOUND,
			"there is no InferenceCluster \"%.60s\" in this namespace (spec.cluster)",
			cgn_buf_z(&name));
	}
	item_each(c, cluster_count, &s);
	if (s.n == 1) {
		*out = s.only;
		return CGN_OK;
	}
	return s.n == 0
		? CGN_FAIL(err, NOT_FOUND, "there is no InferenceCluster in this namespace")
		: CGN_FAIL(err, CONFLICT,
			  "there are %zu InferenceClusters in this namespace: name one in spec.cluster", s.n);
}

bool pool_cascade(const struct item *i, struct json_val *out)
{
	struct json_val object;
	return i->kind == DESIRED_POOL && i->text != NULL &&
		cgn_ok(json_parse((struct cgn_str){i->text, i->bytes}, &object, NULL, NULL)) &&
		desired_spec(object, "cascade", NULL, out);
}

bool item_is_held(const struct item *i, const struct work *w)
{
	return i->owner_kind == w->resource->kind && strcmp(i->owner, w->resource->key) == 0 &&
		strcmp(i->holder, w->uid) == 0;
}
