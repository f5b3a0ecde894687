/* SPDX-License-Identifier: Apache-2.0 */
/* put: parts that many objects have. */
#include "policy/config/config.h"
#include "policy/fleet/desired/desired_priv.h"

#define DRAIN_S 600 /* drainTimeout unless it is set. */

const struct desired_kind_row desired_kinds[DESIRED_KINDS] = {
#define DESIRED_KIND(id, kind, api, plural, owned) {kind, api, plural, owned},
#include "policy/fleet/desired/kinds.def"
#undef DESIRED_KIND
};

void desired_set_fini(struct desired_set *s)
{
	cgn_buf_fini(&s->text);
	s->n = 0;
}

struct cgn_str desired_body(const struct desired_set *s, const struct desired_object *o)
{
	return (struct cgn_str){s->text.p + o->at, o->n};
}

/* ---- reading ---- */

bool desired_spec(struct json_val resource, const char *a, const char *b, struct json_val *out)
{
	struct json_val v;
	if (!json_get(resource, "spec", &v) || !json_get(v, a, out))
		return false;
	v = *out;
	return (b == NULL || json_get(v, b, out)) && out->type != JSON_NULL;
}

void desired_text(struct json_val resource, const char *a, const char *b, const char *fallback,
	struct cgn_buf *out)
{
	struct json_val v;
	if (desired_spec(resource, a, b, &v) && v.type == JSON_STRING)
		json_str_to(v, out);
	else
		cgn_buf_putz(out, fallback);
}

uint64_t desired_number(struct json_val resource, const char *a, const char *b, uint64_t fallback)
{
	struct json_val v;
	uint64_t n;
	return desired_spec(resource, a, b, &v) && json_u64(v, &n) ? n : fallback;
}

uint64_t desired_drain_seconds(struct json_val resource, const char *a, const char *b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	cgn_nsec limit;
	desired_text(resource, a, b, "", &text);
	return config_duration(cgn_buf_view(&text), &limit) ? (limit + CGN_SEC - 1) / CGN_SEC : DRAIN_S;
}

bool desired_meta(struct json_val resource, const char *key, char *out, size_t cap)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct json_val meta, v;
	if (!json_get(resource, "metadata", &meta) || !json_get(meta, key, &v) || v.type != JSON_STRING)
		return false;
	json_str_to(v, &text);
	return text.n > 0 && cgn_str_copyz(out, cap, cgn_buf_view(&text));
}

void desired_cluster_name(struct json_val cluster, char *out, size_t cap)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	desired_text(cluster, "clusterName", NULL, "", &text);
	if (text.n == 0 || !cgn_str_copyz(out, cap, cgn_buf_view(&text)))
		if (!desired_meta(cluster, "name", out, cap))
			out[0] = '\0';
}

CGN_RC desired_owner_read(struct json_val resource, enum desired_kind kind,
	const struct desired_images *images, struct desired_set *set, struct desired_owner *out,
	struct cgn_err *err)
{
	*out = (struct desired_owner){.resource = resource, .kind = kind, .images = images, .set = set};
	if (desired_meta(resource, "name", out->name, sizeof out->name) &&
		desired_meta(resource, "namespace", out->space, sizeof out->space) &&
		desired_meta(resource, "uid", out->uid, sizeof out->uid))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"metadata.name must have at most 47 characters, because names of other objects are made of it");
}

/* ---- objects ---- */

void desired_labels(const struct desired_owner *w, struct json_out *o, const char *key, const char *component)
{
	json_key_open(o, key, '{');
	json_key_z(o, "app.kubernetes.io/name", "cognitora");
	json_key_z(o, "app.kubernetes.io/instance", w->name);
	json_key_z(o, "app.kubernetes.io/component", component);
	if (strcmp(key, "labels") == 0)
		json_key_z(o, DESIRED_IN_CLUSTER, w->cluster);
	json_close(o, '}');
}

struct json_out desired_begin(const struct desired_owner *w, enum desired_kind kind, const char *name,
	const char *component)
{
	CGN_MUST(w->set->n < DESIRED_OBJECTS);
	struct desired_object *object = &w->set->objects[w->set->n];
	struct json_out o = json_out_to(&w->set->text);
	char label[DESIRED_NAME_MAX + 16];
	*object = (struct desired_object){.kind = kind, .at = w->set->text.n};
	(void)cgn_str_copyz(object->name, sizeof object->name, cgn_str_of(name));
	(void)snprintf(label, sizeof label, "%s.%s", w->kind == DESIRED_POOL ? "pool" : "cluster", w->name);
	json_open(&o, '{');
	json_key_z(&o, "apiVersion", desired_kinds[kind].api);
	json_key_z(&o, "kind", desired_kinds[kind].kind);
	json_key_open(&o, "metadata", '{');
	json_key_z(&o, "name", name);
	json_key_z(&o, "namespace", w->space);
	json_key_open(&o, "labels", '{');
	json_key_z(&o, "app.kubernetes.io/name", "cognitora");
	json_key_z(&o, "app.kubernetes.io/instance", w->name);
	json_key_z(&o, "app.kubernetes.io/component", component);
	json_key_z(&o, DESIRED_MANAGED_BY, DESIRED_MANAGER);
	json_key_z(&o, DESIRED_OWNER, label);
	json_key_z(&o, DESIRED_IN_CLUSTER, w->cluster);
	json_close(&o, '}');
	json_key_open(&o, "ownerReferences", '[');
	json_open(&o, '{');
	json_key_z(&o, "apiVersion", desired_kinds[w->kind].api);
	json_key_z(&o, "kind", desired_kinds[w->kind].kind);
	json_key_z(&o, "name", w->name);
	json_key_z(&o, "uid", w->uid);
	json_key_bool(&o, "controller", true);
	json_key_bool(&o, "blockOwnerDeletion", true);
	json_close(&o, '}');
	json_close(&o, ']');
	json_close(&o, '}');
	return o;
}

void desired_end(const struct desired_owner *w, struct json_out *o)
{
	struct desired_object *object = &w->set->objects[w->set->n++];
	json_close(o, '}');
	object->n = w->set->text.n - object->at;
}

/* ---- parts of pods ---- */

void desired_image(const struct desired_owner *w, struct json_out *o, const char *program)
{
	char image[512];
	(void)snprintf(image, sizeof image, "%s%s:%s", w->images->prefix, program, w->images->tag);
	json_key_z(o, "image", image);
}

void desired_restricted(struct json_out *o)
{
	json_key_open(o, "securityContext", '{');
	json_key_bool(o, "allowPrivilegeEscalation", false);
	json_key_bool(o, "readOnlyRootFilesystem", true);
	json_key_bool(o, "runAsNonRoot", true);
	json_key_u64(o, "runAsUser", 65532);
	json_key_open(o, "capabilities", '{');
	json_key_open(o, "drop", '[');
	json_put_z(o, "ALL");
	json_close(o, ']');
	json_close(o, '}');
	json_close(o, '}');
}

void desired_member(struct json_out *o, struct json_val from, const char *a, const char *b,
	enum json_type type)
{
	struct json_val v;
	if (!desired_spec(from, a, b, &v) || v.type != type)
		return;
	json_key(o, b != NULL ? b : a);
	json_put_raw(o, v.raw);
}

void desired_pod(const struct desired_owner *w, struct json_out *o, struct json_val from, const char *account)
{
	json_key_z(o, "serviceAccountName", account);
	json_key_open(o, "securityContext", '{');
	json_key_u64(o, "fsGroup", 65532);
	json_key_open(o, "seccompProfile", '{');
	json_key_z(o, "type", "RuntimeDefault");
	json_close(o, '}');
	json_close(o, '}');
	if (w->kind != DESIRED_POOL)
		return;
	struct json_val v;
	if (desired_spec(w->resource, "nodeSelector", NULL, &v) && v.type == JSON_OBJECT)
		desired_member(o, w->resource, "nodeSelector", NULL, JSON_OBJECT);
	else
		desired_member(o, from, "agent", "nodeSelector", JSON_OBJECT);
	desired_member(o, from, "agent", "tolerations", JSON_ARRAY);
}

void desired_volumes(struct json_out *o, const char *cluster_object)
{
	char name[DESIRED_NAME_MAX];
	(void)snprintf(name, sizeof name, "%s-config", cluster_object);
	json_key_open(o, "volumes", '[');
	json_open(o, '{');
	json_key_z(o, "name", "config");
	json_key_open(o, "configMap", '{');
	json_key_z(o, "name", name);
	json_close(o, '}');
	json_close(o, '}');
	static const char *const folders[] = {"state", "run"};
	for (size_t i = 0; i < CGN_COUNT(folders); i++) {
		json_open(o, '{');
		json_key_z(o, "name", folders[i]);
		json_key_open(o, "emptyDir", '{');
		json_close(o, '}');
		json_close(o, '}');
	}
}

static void tls_volume_name(const char *component, char out[32])
{
	(void)snprintf(out, 32, "tls-%.20s", component);
}

void desired_tls_volume(struct json_out *o, const char *cluster_object, const char *component)
{
	char name[32], secret[DESIRED_NAME_MAX + 32];
	tls_volume_name(component, name);
	(void)snprintf(secret, sizeof secret, "%s-%s-tls", cluster_object, component);
	json_open(o, '{');
	json_key_z(o, "name", name);
	json_key_open(o, "secret", '{');
	json_key_z(o, "secretName", secret);
	json_key_u64(o, "defaultMode", 0440);
	json_close(o, '}');
	json_close(o, '}');
}

void desired_mount(struct json_out *o, const char *name, const char *path)
{
	json_open(o, '{');
	json_key_z(o, "name", name);
	json_key_z(o, "mountPath", path);
	json_close(o, '}');
}

void desired_mounts_open(struct json_out *o, const char *component)
{
	static const char *const mounts[][2] = {{"config", "/etc/cognitora"}, {"state", "/var/lib/cognitora"},
		{"run", "/run/cognitora"}};
	json_key_open(o, "volumeMounts", '[');
	for (size_t i = 0; i < CGN_COUNT(mounts); i++)
		desired_mount(o, mounts[i][0], mounts[i][1]);
	if (component != NULL) {
		char name[32];
		tls_volume_name(component, name);
		desired_mount(o, name, DESIRED_TLS);
	}
}

void desired_mounts(struct json_out *o, const char *component)
{
	desired_mounts_open(o, component);
	json_close(o, ']');
}

void desired_env(struct json_out *o, const char *name, const char *value)
{
	json_open(o, '{');
	json_key_z(o, "name", name);
	json_key_z(o, "value", value);
	json_close(o, '}');
}

void desired_env_field(struct json_out *o, const char *name, const char *field)
{
	json_open(o, '{');
	json_key_z(o, "name", name);
	json_key_open(o, "valueFrom", '{');
	json_key_open(o, "fieldRef", '{');
	json_key_z(o, "fieldPath", field);
	json_close(o, '}');
	json_close(o, '}');
	json_close(o, '}');
}

void desired_container_port(struct json_out *o, const char *name, uint64_t port)
{
	json_open(o, '{');
	json_key_z(o, "name", name);
	json_key_u64(o, "containerPort", port);
	json_key_z(o, "protocol", "TCP");
	json_close(o, '}');
}

void desired_probe_times(struct json_out *o, const char *key, const char *path, uint64_t port, bool tls,
	uint64_t failures)
{
	json_key_open(o, key, '{');
	json_key_open(o, "httpGet", '{');
	json_key_z(o, "path", path);
	json_key_u64(o, "port", port);
	if (tls)
		json_key_z(o, "scheme", "HTTPS");
	json_close(o, '}');
	json_key_u64(o, "periodSeconds", 5);
	json_key_u64(o, "failureThreshold", failures);
	json_close(o, '}');
}

void desired_probe(struct json_out *o, const char *key, const char *path, uint64_t port, bool tls)
{
	desired_probe_times(o, key, path, port, tls, 3);
}

void desired_budget(const struct desired_owner *w, const char *name, const char *component)
{
	struct json_out o = desired_begin(w, DESIRED_PDB, name, component);
	json_key_open(&o, "spec", '{');
	json_key_u64(&o, "maxUnavailable", 1);
	json_key_open(&o, "selector", '{');
	desired_labels(w, &o, "matchLabels", component);
	json_close(&o, '}');
	json_close(&o, '}');
	desired_end(w, &o);
}
