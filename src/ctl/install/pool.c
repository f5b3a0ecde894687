/* SPDX-License-Identifier: Apache-2.0 */
/* pool: finds the program that sets the number of a ModelPool's pods. An autoscaler, and kubectl scale, set
 * it by the subresource "scale"; a manifest that names it too would take it from them. */
#include <string.h>

#include "base/json/json.h"
#include "ctl/install/install.h"

/* Does this entry of managedFields own spec.replicas? */
static bool entry_owns(struct json_val entry)
{
	struct json_val fields, spec, replicas;
	return json_get(entry, "fieldsV1", &fields) && json_get(fields, "f:spec", &spec) &&
		json_get(spec, "f:replicas", &replicas);
}

/* Find an owner of spec.replicas other than cgn-ctl's manifests; |ours|: these own it too. */
static void owner_find(struct json_val metadata, struct install_pool *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf name = {.n = 0};
	struct json_val list, entry, manager;
	if (!json_get(metadata, "managedFields", &list) || list.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &entry);) {
		if (!entry_owns(entry) || !json_get(entry, "manager", &manager) ||
			manager.type != JSON_STRING)
			continue;
		name.n = 0;
		json_str_to(manager, &name);
		if (cgn_str_is(cgn_buf_view(&name), INSTALL_MANAGER))
			out->ours = true;
		else
			(void)cgn_str_copyz(out->owner, sizeof out->owner, cgn_buf_view(&name));
	}
}

CGN_RC install_pool_read(struct cgn_str text, struct install_pool *out, struct cgn_err *err)
{
	struct json_val pool, metadata, spec, v;
	*out = (struct install_pool){.there = false};
	if (cgn_str_trim(text).n == 0)
		return CGN_OK;
	CGN_TRY(json_parse(text, &pool, NULL, err));
	out->there = true;
	if (json_get(pool, "metadata", &metadata))
		owner_find(metadata, out);
	if (!json_get(pool, "spec", &spec))
		return CGN_OK;
	out->autoscaled = json_get(spec, "autoscaling", &v) && v.type == JSON_OBJECT;
	out->replicas = json_get_u64(spec, "replicas", 0);
	return CGN_OK;
}

CGN_RC install_pool_replicas(const struct install_pool *p, const char *name, const uint64_t *wanted,
	bool *write, uint64_t *replicas, struct cgn_err *err)
{
	if (wanted != NULL && p->autoscaled)
		return CGN_FAIL(err, INVALID,
			"ModelPool %s is scaled by its autoscaler (spec.autoscaling): leave --replicas out",
			name);
	if (wanted != NULL && p->owner[0] != '\0' && *wanted != p->replicas)
		return CGN_FAIL(err, CONFLICT,
			"\"%s\" has set the %llu replicas of ModelPool %s: leave --replicas out, or scale it by kubectl scale modelpool %s --replicas=%llu",
			p->owner, (unsigned long long)p->replicas, name, name, (unsigned long long)*wanted);
	/* A number that the manifests alone have set is named again: without it, it would be set back. */
	*write = wanted != NULL ? p->owner[0] == '\0' : p->ours && p->owner[0] == '\0';
	*replicas = wanted != NULL ? *wanted : p->replicas;
	return CGN_OK;
}
