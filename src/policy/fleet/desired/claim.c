/* SPDX-License-Identifier: Apache-2.0 */
/* claim: the owner of an object that stands where one of ours is to be. */
#include <string.h>

#include "policy/fleet/desired/desired.h"

/* Copy the text member |key| of |object|; false: it has none, or |out| is too small. */
static bool text_member(struct json_val object, const char *key, char *out, size_t cap)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct json_val v;
	out[0] = '\0';
	if (object.type != JSON_OBJECT || !json_get(object, key, &v) || v.type != JSON_STRING)
		return false;
	json_str_to(v, &text);
	return cgn_str_copyz(out, cap, cgn_buf_view(&text));
}

/* Find the owner that manages the object; false: it has none. */
static bool controller_find(struct json_val object, struct json_val *out)
{
	struct json_val meta, list, is;
	if (!json_get(object, "metadata", &meta) || !json_get(meta, "ownerReferences", &list) ||
		list.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, out);)
		if (out->type == JSON_OBJECT && json_get(*out, "controller", &is) && json_bool(is, false))
			return true;
	return false;
}

bool desired_holder(struct json_val object, char out[DESIRED_UID])
{
	struct json_val owner;
	out[0] = '\0';
	return controller_find(object, &owner) && text_member(owner, "uid", out, DESIRED_UID);
}

static bool label_equal(struct json_val a, struct json_val b, const char *key)
{
	struct json_val meta_a, meta_b, labels_a, labels_b;
	char is[DESIRED_NAME_MAX + 16], wanted[DESIRED_NAME_MAX + 16];
	return json_get(a, "metadata", &meta_a) && json_get(meta_a, "labels", &labels_a) &&
		json_get(b, "metadata", &meta_b) && json_get(meta_b, "labels", &labels_b) &&
		text_member(labels_a, key, is, sizeof is) &&
		text_member(labels_b, key, wanted, sizeof wanted) && strcmp(is, wanted) == 0;
}

/* Is |wanted| the Secret in which routers keep cordons? They make it themselves if it is not there. */
static bool is_state(struct json_val wanted)
{
	struct json_val meta, labels;
	char component[32];
	return json_get(wanted, "metadata", &meta) && json_get(meta, "labels", &labels) &&
		text_member(labels, "app.kubernetes.io/component", component, sizeof component) &&
		strcmp(component, "state") == 0;
}

bool desired_claim(struct json_val found, struct json_val wanted, char who[DESIRED_WHO])
{
	struct json_val owner;
	char uid[DESIRED_UID], ours[DESIRED_UID], kind[64], name[DESIRED_NAME_MAX];
	(void)desired_holder(wanted, ours);
	if (desired_holder(found, uid)) {
		(void)controller_find(found, &owner);
		(void)text_member(owner, "kind", kind, sizeof kind);
		(void)text_member(owner, "name", name, sizeof name);
		(void)snprintf(who, DESIRED_WHO, "belongs to %.60s %.100s", kind, name);
		return strcmp(uid, ours) == 0;
	}
	(void)snprintf(who, DESIRED_WHO, "was made by others");
	return (label_equal(found, wanted, DESIRED_MANAGED_BY) &&
		       label_equal(found, wanted, DESIRED_OWNER)) ||
		(is_state(wanted) && label_equal(found, wanted, DESIRED_IN_CLUSTER));
}
