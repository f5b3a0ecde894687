/* SPDX-License-Identifier: Apache-2.0 */
/* stores: block stores in pods of their own (spec.stores of an InferenceCluster), which engines of all pools share by the Redis
 * protocol. Each pod keeps its name and its volume; stores are peers of each other and of those beside the engines. */
#include "policy/fleet/desired/desired_priv.h"

#define STORES_GRACE_S 30  /* kv.drain_timeout, and the time to close the SSD tier. */
#define STORES_STARTS  120 /* Probes while the SSD tier is opened: ten minutes. */
#define STORES_ADMIN   7093
#define STORES_REDIS   7092

uint64_t desired_stores(struct json_val cluster)
{
	return desired_number(cluster, "stores", "ramGib", 0) > 0
		? desired_number(cluster, "stores", "replicas", 1)
		: 0;
}

/* Write [kv] peers: each store by the name of its pod, under which it comes back. */
void desired_stores_peers(const struct desired_owner *w, struct cgn_buf *b)
{
	uint64_t n = desired_stores(w->resource);
	if (n == 0)
		return;
	cgn_buf_putz(b, "peers = [");
	for (uint64_t i = 0; i < n; i++)
		cgn_buf_fmt(b, "%s\"%s-kvcached-%llu.%s-kvcached.%s.svc:7091\"", i == 0 ? "" : ", ", w->name,
			(unsigned long long)i, w->name, w->space);
	cgn_buf_putz(b, "]\n");
}

static void name_of(const struct desired_owner *w, const char *what, char out[DESIRED_NAME_MAX])
{
	(void)snprintf(out, DESIRED_NAME_MAX, "%s-%s", w->name, what);
}

static void size_env(struct json_out *o, const char *name, uint64_t gib)
{
	char text[32];
	(void)snprintf(text, sizeof text, "%lluGiB", (unsigned long long)gib);
	desired_env(o, name, text);
}

/* Settings of the configuration that are others here than beside an engine. */
static void stores_env(const struct desired_owner *w, struct json_out *o)
{
	json_key_open(o, "env", '[');
	desired_env_field(o, "POD_NAME", "metadata.name");
	desired_env_field(o, "POD_IP", "status.podIP");
	desired_env(o, "COGNITORA__AGENT__NODE_ID", "$(POD_NAME)");
	desired_env(o, "COGNITORA__KV__ADVERTISE", "$(POD_IP):7091");
	size_env(o, "COGNITORA__KV__RAM", desired_number(w->resource, "stores", "ramGib", 0));
	size_env(o, "COGNITORA__KV__SSD", desired_number(w->resource, "stores", "ssdGib", 0));
	desired_env(o, "COGNITORA__KV__SSD_DIR", "/var/lib/cognitora/kv");
	desired_env(o, "COGNITORA__KV__LISTEN_ADMIN", "0.0.0.0:7093"); /* For the kubelet's probes. */
	desired_env(o, "COGNITORA__KV__RESP_LISTEN", "0.0.0.0:7092");
	desired_env(o, "COGNITORA__KV__RESP_PASSWORD_FILE", "/etc/cognitora-password/password");
	desired_env(o, "COGNITORA__KV__RESP_ROLE",
		"kvcached"); /* Engines read and write blocks, and no more. */
	json_close(o, ']');
}

static void store_container(const struct desired_owner *w, struct json_out *o)
{
	struct json_val v;
	bool secured = desired_is_secured(w->resource);
	json_open(o, '{');
	json_key_z(o, "name", "kvcached");
	desired_image(w, o, "cgn-kvcached");
	stores_env(w, o);
	json_key_open(o, "ports", '[');
	desired_container_port(o, "redis", STORES_REDIS);
	desired_container_port(o, "admin", STORES_ADMIN);
	json_close(o, ']');
	desired_probe_times(o, "startupProbe", "/healthz", STORES_ADMIN, secured, STORES_STARTS);
	desired_probe(o, "readinessProbe", "/readyz", STORES_ADMIN, secured);
	desired_probe(o, "livenessProbe", "/healthz", STORES_ADMIN, secured);
	if (desired_spec(w->resource, "stores", "resources", &v) && v.type == JSON_OBJECT) {
		json_key(o, "resources");
		json_put_raw(o, v.raw);
	}
	desired_restricted(o);
	desired_mounts_open(o, secured ? "kvcached" : NULL);
	desired_mount(o, "password", "/etc/cognitora-password");
	desired_mount(o, "kv", "/var/lib/cognitora/kv");
	json_close(o, ']');
	json_close(o, '}');
}

static void password_volume(const struct desired_owner *w, struct json_out *o)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf secret = {.n = 0};
	desired_text(w->resource, "stores", "passwordSecret", "", &secret);
	json_open(o, '{');
	json_key_z(o, "name", "password");
	json_key_open(o, "secret", '{');
	json_key_str(o, "secretName", cgn_buf_view(&secret));
	json_key_u64(o, "defaultMode", 0440);
	json_close(o, '}');
	json_close(o, '}');
}

static void scratch_volume(struct json_out *o)
{
	json_open(o, '{');
	json_key_z(o, "name", "kv");
	json_key_open(o, "emptyDir", '{');
	json_close(o, '}');
	json_close(o, '}');
}

/* The volume of each pod, and what becomes of it: its blocks are worth nothing without the cluster. */
static void claims_put(const struct desired_owner *w, struct json_out *o, uint64_t gib)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf class = {.n = 0};
	char size[32];
	desired_text(w->resource, "stores", "storageClassName", "", &class);
	(void)snprintf(size, sizeof size, "%lluGi",
		(unsigned long long)gib + 1); /* kv.ssd, and the file system. */
	json_key_open(o, "volumeClaimTemplates", '[');
	json_open(o, '{');
	json_key_open(o, "metadata", '{');
	json_key_z(o, "name", "kv");
	json_close(o, '}');
	json_key_open(o, "spec", '{');
	json_key_open(o, "accessModes", '[');
	json_put_z(o, "ReadWriteOnce");
	json_close(o, ']');
	if (class.n > 0)
		json_key_str(o, "storageClassName", cgn_buf_view(&class));
	json_key_open(o, "resources", '{');
	json_key_open(o, "requests", '{');
	json_key_z(o, "storage", size);
	json_close(o, '}');
	json_close(o, '}');
	json_close(o, '}');
	json_close(o, '}');
	json_close(o, ']');
	json_key_open(o, "persistentVolumeClaimRetentionPolicy", '{');
	json_key_z(o, "whenDeleted", "Delete");
	json_key_z(o, "whenScaled", "Retain");
	json_close(o, '}');
}

static void template_put(const struct desired_owner *w, struct json_out *o, uint64_t replicas, uint64_t gib)
{
	char account[DESIRED_NAME_MAX], count[24];
	name_of(w, "agent", account);
	(void)snprintf(count, sizeof count, "%llu", (unsigned long long)replicas);
	json_key_open(o, "template", '{');
	json_key_open(o, "metadata", '{');
	desired_labels(w, o, "labels", "kvcached");
	json_key_open(o, "annotations", '{');
	json_key_z(o, "cognitora.dev/stores", count); /* Another list of peers starts new pods. */
	if (desired_is_revoking(w->resource))
		json_key_z(o, "cognitora.dev/revoked", "crl.pem");
	json_close(o, '}');
	json_close(o, '}');
	json_key_open(o, "spec", '{');
	json_key_u64(o, "terminationGracePeriodSeconds", STORES_GRACE_S);
	desired_pod(w, o, w->resource, account);
	desired_member(o, w->resource, "stores", "nodeSelector", JSON_OBJECT);
	desired_member(o, w->resource, "stores", "tolerations", JSON_ARRAY);
	json_key_open(o, "containers", '[');
	store_container(w, o);
	json_close(o, ']');
	desired_volumes(o, w->name);
	if (desired_is_secured(w->resource))
		desired_tls_volume(o, w->name, "kvcached");
	password_volume(w, o);
	if (gib == 0)
		scratch_volume(o);
	json_close(o, ']');
	json_close(o, '}');
	json_close(o, '}');
}

static void set_object(const struct desired_owner *w, const char *name, uint64_t replicas)
{
	uint64_t gib = desired_number(w->resource, "stores", "ssdGib", 0);
	struct json_out o = desired_begin(w, DESIRED_STATEFULSET, name, "kvcached");
	json_key_open(&o, "spec", '{');
	json_key_u64(&o, "replicas", replicas);
	json_key_z(&o, "serviceName", name);
	json_key_z(&o, "podManagementPolicy", "OrderedReady");
	json_key_open(&o, "updateStrategy", '{');
	json_key_z(&o, "type", "RollingUpdate");
	json_close(&o, '}');
	json_key_open(&o, "selector", '{');
	desired_labels(w, &o, "matchLabels", "kvcached");
	json_close(&o, '}');
	template_put(w, &o, replicas, gib);
	if (gib > 0)
		claims_put(w, &o, gib);
	json_close(&o, '}');
	desired_end(w, &o);
}

static void port_put(struct json_out *o, const char *name, uint64_t port, const char *protocol)
{
	json_open(o, '{');
	json_key_z(o, "name", name);
	json_key_u64(o, "port", port);
	json_key_z(o, "protocol", protocol);
	json_close(o, '}');
}

/* |headless|: the pods' names, also of those that are not ready, for peers; else the address of all that are, for engines. */
static void service_put(const struct desired_owner *w, const char *name, bool headless)
{
	struct json_out o = desired_begin(w, DESIRED_SERVICE, name, "kvcached");
	json_key_open(&o, "spec", '{');
	if (headless) {
		json_key_z(&o, "clusterIP", "None");
		json_key_bool(&o, "publishNotReadyAddresses", true);
	}
	desired_labels(w, &o, "selector", "kvcached");
	json_key_open(&o, "ports", '[');
	if (headless) {
		port_put(&o, "grpc", 7090, "TCP");
		port_put(&o, "quic", 7091, "UDP");
		port_put(&o, "admin", STORES_ADMIN, "TCP");
	} else {
		port_put(&o, "redis", STORES_REDIS, "TCP");
	}
	json_close(&o, ']');
	json_close(&o, '}');
	desired_end(w, &o);
}

void desired_stores_objects(const struct desired_owner *w)
{
	char name[DESIRED_NAME_MAX], redis[DESIRED_NAME_MAX];
	uint64_t replicas = desired_stores(w->resource);
	if (replicas == 0)
		return;
	name_of(w, "kvcached", name);
	name_of(w, "kv", redis);
	service_put(w, name, true);
	service_put(w, redis, false);
	set_object(w, name, replicas);
	desired_budget(w, name, "kvcached");
}

/* An engine finds the password and the URL in its environment; arguments may name them, "$(COGNITORA_KV_URL)". */
void desired_stores_env(const struct desired_owner *w, struct json_val cluster, const char *cluster_object,
	bool lmcache, struct json_out *o)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf secret = {.n = 0}, url = {.n = 0};
	if (desired_stores(cluster) == 0)
		return;
	desired_text(cluster, "stores", "passwordSecret", "", &secret);
	cgn_buf_fmt(&url, "redis://:$(COGNITORA_KV_PASSWORD)@%s-kv.%s.svc:7092", cluster_object, w->space);
	json_key_open(o, "env", '[');
	json_open(o, '{');
	json_key_z(o, "name", "COGNITORA_KV_PASSWORD");
	json_key_open(o, "valueFrom", '{');
	json_key_open(o, "secretKeyRef", '{');
	json_key_str(o, "name", cgn_buf_view(&secret));
	json_key_z(o, "key", "password");
	json_close(o, '}');
	json_close(o, '}');
	json_close(o, '}');
	desired_env(o, "COGNITORA_KV_URL", cgn_buf_z(&url));
	if (lmcache) { /* As engine.kv_offload = "lmcache" sets it. */
		desired_env(o, "LMCACHE_REMOTE_URL", "$(COGNITORA_KV_URL)");
		desired_env(o, "LMCACHE_REMOTE_SERDE", "naive");
	}
	json_close(o, ']');
}
