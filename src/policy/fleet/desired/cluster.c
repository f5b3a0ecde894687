/* SPDX-License-Identifier: Apache-2.0 */
/* cluster: the objects of an InferenceCluster: configuration, rights, routers, metrics. */
#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "policy/fleet/desired/desired_priv.h"

#define ROUTER_LEAVES_S 5 /* Until no Service sends connections to a router that ends. */
#define ROUTER_REST_S   15
#define METRICS_GRACE_S 60

/* ---- the configuration ---- */

static void security_put(const struct desired_owner *w, struct cgn_buf *b)
{
	if (!desired_is_secured(w->resource)) {
		cgn_buf_putz(b, "[security]\ninsecure = true\n");
		return;
	}
	cgn_buf_fmt(b,
		"[security]\nrequire_mtls = true\nca_file = \"" DESIRED_TLS
		"/ca.crt\"\ncert_file = \"" DESIRED_TLS "/tls.crt\"\nkey_file = \"" DESIRED_TLS
		"/tls.key\"\nfollow_files = true\nnode_name = \"%s-agents.%s.svc\"\n",
		w->name, w->space);
	if (desired_is_revoking(w->resource))
		cgn_buf_putz(b, "crl_file = \"" DESIRED_TLS "/crl.pem\"\n");
}

static void config_write(const struct desired_owner *w, const struct desired_routing *routing,
	struct cgn_buf *b)
{
	cgn_buf_putz(b, "# Written by cgn-operator; changes are overwritten.\n[cluster]\n");
	desired_toml_text(b, "name", cgn_str_of(w->cluster));
	cgn_buf_fmt(b,
		"state_backend = \"kubernetes\"\nrouter = \"%s-router:9090\"\nkubernetes_service = \"%s-agents\"\n",
		w->name, w->name);
	security_put(w, b);
	/* The objects have no keys yet, nor the names of an Ingress: who reaches the gateway is the network's to say. */
	cgn_buf_putz(b,
		"allowed_hosts = [\"*\"]\n[router]\nlisten = \"0.0.0.0:8080\"\n[log]\nformat = \"json\"\n");
	uint64_t ram = desired_number(w->resource, "kvcached", "ramGib", 0),
		 ssd = desired_number(w->resource, "kvcached", "ssdGib", 0);
	if (ram > 0 || desired_stores(w->resource) > 0)
		cgn_buf_putz(b, "[kv]\n");
	if (ram > 0)
		cgn_buf_fmt(b, "ram = \"%lluGiB\"\nssd = \"%lluGiB\"\nssd_dir = \"/var/lib/cognitora/kv\"\n",
			(unsigned long long)ram, (unsigned long long)ssd);
	desired_stores_peers(w, b);
	desired_routing_put(routing, b);
}

static void config_object(const struct desired_owner *w, const char *name, struct cgn_str text)
{
	struct json_out o = desired_begin(w, DESIRED_CONFIGMAP, name, "config");
	json_key_open(&o, "data", '{');
	json_key_str(&o, "cognitora.toml", text);
	json_close(&o, '}');
	desired_end(w, &o);
}

/* Write the routing policy document (policy/route/routing) of a RoutingPolicy; nothing if it sets no weights. */
static void document_put(struct json_val policy, struct cgn_buf *out)
{
	static const char *const weights[] = {"kv", "load", "power", "capacity"};
	static const double fallback[] = {0.55, 0.25, 0.10, 0.10};
	struct json_out o = json_out_to(out);
	struct json_val v;
	double number;
	if (!desired_spec(policy, "scoreWeights", NULL, &v) || v.type != JSON_OBJECT)
		return;
	json_open(&o, '{');
	json_key_z(&o, "policy", "weighted");
	json_key_open(&o, "weights", '{');
	for (size_t i = 0; i < CGN_COUNT(weights); i++)
		json_key_f64(&o, weights[i],
			desired_spec(policy, "scoreWeights", weights[i], &v) && json_f64(v, &number)
				? number
				: fallback[i]);
	json_close(&o, '}');
	json_close(&o, '}');
}

/* The Secret of state_backend "kubernetes", where routers keep cordons. The document is there only if a RoutingPolicy sets weights. */
static void state_object(const struct desired_owner *w, const struct json_val *policy)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf document = {.n = 0}, coded = {.n = 0};
	char name[DESIRED_NAME_MAX + 8];
	(void)snprintf(name, sizeof name, "%s.state", w->cluster);
	if (policy != NULL)
		document_put(*policy, &document);
	base64_put(&coded, cgn_buf_view(&document));
	struct json_out o = desired_begin(w, DESIRED_SECRET, name, "state");
	json_key_open(&o, "data", '{');
	json_key_z(&o, "format", "MQ==");
	if (document.n > 0)
		json_key_str(&o, "policy", cgn_buf_view(&coded));
	json_close(&o, '}');
	desired_end(w, &o);
}

/* ---- rights ---- */

static void words_put(struct json_out *o, const char *key, const char *words)
{
	struct cgn_str rest = cgn_str_of(words);
	json_key_open(o, key, '[');
	while (rest.p != NULL)
		json_put_str(o, cgn_str_split(&rest, ' '));
	json_close(o, ']');
}

static void rule_put(struct json_out *o, const char *group, const char *resource, const char *name,
	const char *verbs)
{
	json_open(o, '{');
	words_put(o, "apiGroups", group);
	words_put(o, "resources", resource);
	if (name != NULL)
		words_put(o, "resourceNames", name);
	words_put(o, "verbs", verbs);
	json_close(o, '}');
}

static void account_objects(const struct desired_owner *w, const char *component)
{
	char name[DESIRED_NAME_MAX], secret[DESIRED_NAME_MAX + 8];
	bool router = strcmp(component, "router") == 0;
	(void)snprintf(name, sizeof name, "%s-%s", w->name, component);
	(void)snprintf(secret, sizeof secret, "%s.state", w->cluster);
	struct json_out o = desired_begin(w, DESIRED_SERVICEACCOUNT, name, component);
	desired_end(w, &o);
	o = desired_begin(w, DESIRED_ROLE, name, component);
	json_key_open(&o, "rules", '[');
	rule_put(&o, "coordination.k8s.io", "leases", NULL,
		router ? "get list watch create update" : "get list watch create patch delete");
	rule_put(&o, "", "secrets", secret, router ? "get list watch patch" : "get list watch");
	rule_put(&o, "discovery.k8s.io", "endpointslices", NULL, "list watch");
	if (router)
		rule_put(&o, "", "secrets", NULL, "create");
	json_close(&o, ']');
	desired_end(w, &o);
	o = desired_begin(w, DESIRED_ROLEBINDING, name, component);
	json_key_open(&o, "roleRef", '{');
	json_key_z(&o, "apiGroup", "rbac.authorization.k8s.io");
	json_key_z(&o, "kind", "Role");
	json_key_z(&o, "name", name);
	json_close(&o, '}');
	json_key_open(&o, "subjects", '[');
	json_open(&o, '{');
	json_key_z(&o, "kind", "ServiceAccount");
	json_key_z(&o, "name", name);
	json_key_z(&o, "namespace", w->space);
	json_close(&o, '}');
	json_close(&o, ']');
	desired_end(w, &o);
}

/* ---- routers and metrics ---- */

static void port_put(struct json_out *o, const char *name, uint64_t port)
{
	json_open(o, '{');
	json_key_z(o, "name", name);
	json_key_u64(o, "port", port);
	json_key_u64(o, "targetPort", port);
	json_key_z(o, "protocol", "TCP");
	json_close(o, '}');
}

/* |grpc|: another port; 0: none. */
static void service_object(const struct desired_owner *w, const char *name, const char *component,
	const char *type, uint64_t port, uint64_t grpc)
{
	struct json_out o = desired_begin(w, DESIRED_SERVICE, name, component);
	json_key_open(&o, "spec", '{');
	json_key_z(&o, "type", type);
	desired_labels(w, &o, "selector", component);
	json_key_open(&o, "ports", '[');
	port_put(&o, "http", port);
	if (grpc != 0)
		port_put(&o, "grpc", grpc);
	json_close(&o, ']');
	json_close(&o, '}');
	desired_end(w, &o);
}

/* The pods of all pools; routers watch its EndpointSlices. */
static void agents_object(const struct desired_owner *w)
{
	char name[DESIRED_NAME_MAX];
	(void)snprintf(name, sizeof name, "%s-agents", w->name);
	struct json_out o = desired_begin(w, DESIRED_SERVICE, name, "agents");
	json_key_open(&o, "spec", '{');
	json_key_z(&o, "clusterIP", "None");
	json_key_bool(&o, "publishNotReadyAddresses", true);
	json_key_open(&o, "selector", '{');
	json_key_z(&o, "app.kubernetes.io/component", "pool");
	json_key_z(&o, DESIRED_IN_CLUSTER, w->cluster);
	json_close(&o, '}');
	json_key_open(&o, "ports", '[');
	port_put(&o, "grpc", 7080);
	json_close(&o, ']');
	json_close(&o, '}');
	desired_end(w, &o);
}

static void template_begin(const struct desired_owner *w, struct json_out *o, const char *component,
	const char *config)
{
	json_key_open(o, "template", '{');
	json_key_open(o, "metadata", '{');
	desired_labels(w, o, "labels", component);
	json_key_open(o, "annotations", '{');
	json_key_z(o, "cognitora.dev/config", config); /* Another configuration starts new pods. */
	json_close(o, '}');
	json_close(o, '}');
}

/* Give a router that ends the time for its streams, and a moment until no new connections come. */
static void router_end(struct json_out *o, uint64_t drain)
{
	char limit[24];
	(void)snprintf(limit, sizeof limit, "%llus", (unsigned long long)drain);
	json_key_open(o, "env", '[');
	desired_env(o, "COGNITORA__ROUTER__DRAIN_TIMEOUT", limit);
	json_close(o, ']');
	json_key_open(o, "lifecycle", '{');
	json_key_open(o, "preStop", '{');
	json_key_open(o, "sleep", '{');
	json_key_u64(o, "seconds", ROUTER_LEAVES_S);
	json_close(o, '}');
	json_close(o, '}');
	json_close(o, '}');
}

static void deployment_object(const struct desired_owner *w, const char *component, const char *program,
	uint64_t replicas, uint64_t port, const char *config)
{
	char name[DESIRED_NAME_MAX], account[DESIRED_NAME_MAX];
	struct json_val v;
	bool router = strcmp(component, "router") == 0;
	uint64_t drain = desired_drain_seconds(w->resource, "router", "drainTimeout");
	bool secured = desired_is_secured(w->resource);
	bool tls = secured && !router; /* The gateway is in clear. */
	(void)snprintf(name, sizeof name, "%s-%s", w->name, component);
	(void)snprintf(account, sizeof account, "%s-router", w->name);
	struct json_out o = desired_begin(w, DESIRED_DEPLOYMENT, name, component);
	json_key_open(&o, "spec", '{');
	json_key_u64(&o, "replicas", replicas);
	json_key_open(&o, "selector", '{');
	desired_labels(w, &o, "matchLabels", component);
	json_close(&o, '}');
	json_key_open(&o, "strategy", '{');
	json_key_z(&o, "type", "RollingUpdate");
	json_key_open(&o, "rollingUpdate", '{');
	json_key_u64(&o, "maxUnavailable", 0);
	json_key_u64(&o, "maxSurge", 1);
	json_close(&o, '}');
	json_close(&o, '}');
	template_begin(w, &o, component, config);
	json_key_open(&o, "spec", '{');
	json_key_u64(&o, "terminationGracePeriodSeconds",
		router ? drain + ROUTER_LEAVES_S + ROUTER_REST_S : METRICS_GRACE_S);
	desired_pod(w, &o, w->resource, account);
	json_key_open(&o, "containers", '[');
	json_open(&o, '{');
	json_key_z(&o, "name", component);
	desired_image(w, &o, program);
	if (router)
		router_end(&o, drain);
	json_key_open(&o, "ports", '[');
	desired_container_port(&o, "http", port);
	json_close(&o, ']');
	desired_probe(&o, "readinessProbe", "/readyz", port, tls);
	desired_probe(&o, "livenessProbe", "/healthz", port, tls);
	if (desired_spec(w->resource, component, "resources", &v) && v.type == JSON_OBJECT) {
		json_key(&o, "resources");
		json_put_raw(&o, v.raw);
	}
	desired_restricted(&o);
	desired_mounts(&o, secured ? component : NULL);
	json_close(&o, '}');
	json_close(&o, ']');
	desired_volumes(&o, w->name);
	if (secured)
		desired_tls_volume(&o, w->name, component);
	json_close(&o, ']');
	json_close(&o, '}');
	json_close(&o, '}');
	json_close(&o, '}');
	desired_end(w, &o);
}

static bool metrics_wanted(const struct desired_owner *w)
{
	struct json_val v;
	return !desired_spec(w->resource, "metrics", "enabled", &v) || json_bool(v, true);
}

CGN_RC desired_of_cluster(struct json_val cluster, const struct desired_routing *routing,
	const struct desired_images *images, struct desired_set *out, struct cgn_err *err)
{
	struct desired_owner w;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf config = {.n = 0}, hash = {.n = 0}, type = {.n = 0};
	char name[DESIRED_NAME_MAX];
	CGN_TRY(desired_owner_read(cluster, DESIRED_CLUSTER, images, out, &w, err));
	desired_cluster_name(cluster, w.cluster, sizeof w.cluster);
	config_write(&w, routing, &config);
	struct sha256 sum = crypto_sha256(cgn_buf_view(&config));
	hex_put(&hash, (struct cgn_str){(const char *)sum.b, 16});
	uint64_t replicas = desired_number(cluster, "router", "replicas", 1);
	desired_text(cluster, "router", "serviceType", "ClusterIP", &type);
	(void)snprintf(name, sizeof name, "%s-config", w.name);
	config_object(&w, name, cgn_buf_view(&config));
	state_object(&w, routing->policy);
	account_objects(&w, "router");
	account_objects(&w, "agent");
	agents_object(&w);
	(void)snprintf(name, sizeof name, "%s-router", w.name);
	service_object(&w, name, "router", cgn_buf_z(&type), 8080, 9090);
	deployment_object(&w, "router", "cgn-router", replicas, 8080, cgn_buf_z(&hash));
	if (replicas > 1)
		desired_budget(&w, name, "router");
	desired_stores_objects(&w);
	if (metrics_wanted(&w)) {
		(void)snprintf(name, sizeof name, "%s-metrics", w.name);
		service_object(&w, name, "metrics", "ClusterIP", 9092, 0);
		deployment_object(&w, "metrics", "cgn-metrics", 1, 9092, cgn_buf_z(&hash));
	}
	return out->text.bad || config.bad
		? CGN_FAIL(err, NO_MEMORY, "no memory for the objects of %s", w.name)
		: CGN_OK;
}
