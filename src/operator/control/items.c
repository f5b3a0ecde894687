/* SPDX-License-Identifier: Apache-2.0 */
/* items: the objects that are known, by kind and key. */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "operator/control/control_priv.h"

static struct cgn_link *bucket_of(struct control *c, enum desired_kind kind, const char *key)
{
	return &c->buckets[mix_fnv1a(MIX_FNV1A ^ kind, key, strlen(key)) % CONTROL_BUCKETS];
}

struct item *item_find(struct control *c, enum desired_kind kind, const char *key)
{
	struct cgn_link *b = bucket_of(c, kind, key);
	cgn_list_each (it, b) {
		struct item *i = CGN_CONTAINER(it, struct item, link);
		if (i->kind == kind && strcmp(i->key, key) == 0)
			return i;
	}
	return NULL;
}

struct item *item_add(struct control *c, enum desired_kind kind, const char *key)
{
	struct item *i = item_find(c, kind, key);
	size_t n = strlen(key) + 1;
	if (i != NULL || c->n_items >= CONTROL_ITEMS)
		return i;
	i = cgn_zeroed(1, sizeof *i + n, CGN_HERE);
	i->kind = kind;
	memcpy(i->key, key, n);
	cgn_list_push(bucket_of(c, kind, key), &i->link);
	metric_set(METRIC_ONE(c->telemetry, OP_OBJECTS), (double)++c->n_items);
	return i;
}

void item_drop(struct control *c, struct item *i)
{
	CGN_MUST(!i->working && !i->applying);
	cgn_list_drop(&i->link);
	if (i->queued) {
		cgn_list_drop(&i->queue);
		c->n_queued--;
	}
	metric_set(METRIC_ONE(c->telemetry, OP_OBJECTS), (double)--c->n_items);
	free(i->text);
	item_tls_drop(i);
	free(i);
}

void item_each(struct control *c, void (*fn)(void *arg, struct item *i), void *arg)
{
	for (size_t b = 0; b < CONTROL_BUCKETS; b++)
		cgn_list_each_safe (it, &c->buckets[b])
			fn(arg, CGN_CONTAINER(it, struct item, link));
}

bool item_key(struct json_val object, char out[CONTROL_KEY])
{
	struct cgn_str space = k8s_meta(object, "namespace"), name = k8s_meta(object, "name");
	int n = snprintf(out, CONTROL_KEY, "%.*s/%.*s", CGN_STR_ARG(space), CGN_STR_ARG(name));
	return space.n > 0 && name.n > 0 && n > 0 && n < CONTROL_KEY;
}

int64_t item_generation(enum desired_kind kind, struct json_val object)
{
	struct json_val part;
	int64_t number;
	if (!json_get(object, kind == DESIRED_HPA ? "spec" : "metadata", &part))
		return 0;
	if (kind != DESIRED_HPA)
		return (int64_t)json_get_u64(part, "generation", 0);
	struct sha256 sum = crypto_sha256(part.raw);
	memcpy(&number, sum.b, sizeof number);
	return number;
}
