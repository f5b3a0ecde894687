/* SPDX-License-Identifier: Apache-2.0 */
/* pool: the objects of a ModelPool. Each pod has an engine and the agent beside it. The engine is a sidecar of Kubernetes (an init
 * container that restarts), which ends after the agent: at the end of a pod the agent tells the routers that it drains, and the
 * engine computes until the last stream is done. Pods have stable names, which are the ids of their nodes. */
#include "policy/fleet/desired/desired_priv.h"

#define DRAIN_REST_S 30 /* For the agent to leave, and for engine and block store, which end after it. */
#define AGENT_ADMIN  7081

/* How the engine's command line is made. */
struct pool_engine {
	const char *kind;    /* In spec.engine.kind, and engine.kind of the agent. */
	const char *command; /* Words; NULL: the image's own. */
	const char *model;   /* The argument before the model. */
	const char *
		tp; /* The argument before the degree of tensor parallelism; NULL: none, and no GPU is asked for. */
};
static const struct pool_engine engines[] = {
	{"sim", NULL, "--model", NULL},
	{"llama_cpp", NULL, "-hf", NULL},
	{"vllm", NULL, "--model", "--tensor-parallel-size"},
	{"sglang", "python3 -m sglang.launch_server", "--model-path", "--tp"},
};

static const struct pool_engine *engine_find(struct cgn_str kind)
{
	for (size_t i = 0; i < CGN_COUNT(engines); i++)
		if (cgn_str_is(kind, engines[i].kind))
			return &engines[i];
	return NULL;
}

static bool is_ours(const struct pool_engine *e)
{
	return e == &engines[0];
}

static void dtype_put(struct json_out *o, const struct pool_engine *e, struct json_val pool)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf dtype = {.n = 0};
	desired_text(pool, "dtype", NULL, "bfloat16", &dtype);
	const char *z = cgn_buf_z(&dtype);
	if (e->tp == NULL)
		return;
	bool plain = strcmp(z, "bfloat16") == 0 || strcmp(z, "float16") == 0;
	json_put_z(o, plain ? "--dtype" : "--quantization");
	json_put_z(o, plain ? z : strcmp(z, "float8") == 0 ? "fp8" : "w8a8_int8");
}

static void arguments_put(struct json_out *o, const struct pool_engine *e, struct json_val pool,
	struct cgn_str model)
{
	struct json_val more, one;
	char number[24];
	json_key_open(o, "args", '[');
	json_put_z(o, e->model);
	json_put_str(o, model);
	if (is_ours(e)) {
		json_put_z(o, "--listen");
		json_put_z(o, "127.0.0.1:8000");
	} else {
		json_put_z(o, "--host");
		json_put_z(o, "127.0.0.1");
		json_put_z(o, "--port");
		json_put_z(o, "8000");
	}
	if (e->tp != NULL) {
		(void)snprintf(number, sizeof number, "%llu",
			(unsigned long long)desired_number(pool, "tensorParallel", NULL, 1));
		json_put_z(o, e->tp);
		json_put_z(o, number);
	}
	dtype_put(o, e, pool);
	if (desired_spec(pool, "engine", "args", &more) && more.type == JSON_ARRAY)
		for (struct json_iter it = json_iter_of(more); json_next_elem(&it, &one);)
			json_put_raw(o, one.raw);
	json_close(o, ']');
}

static void engine_resources(struct json_out *o, const struct pool_engine *e, struct json_val pool)
{
	char gpus[24];
	struct json_val v;
	if (desired_spec(pool, "engine", "resources", &v) && v.type == JSON_OBJECT) {
		json_key(o, "resources");
		json_put_raw(o, v.raw);
		return;
	}
	if (e->tp == NULL)
		return;
	(void)snprintf(gpus, sizeof gpus, "%llu",
		(unsigned long long)desired_number(pool, "tensorParallel", NULL, 1));
	json_key_open(o, "resources", '{');
	json_key_open(o, "limits", '{');
	json_key_z(o, "nvidia.com/gpu", gpus);
	json_close(o, '}');
	json_close(o, '}');
}

static void engine_container(const struct desired_owner *w, struct json_out *o, const struct pool_engine *e,
	struct cgn_str model, struct json_val cluster, const char *cluster_object)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf image = {.n = 0};
	desired_text(w->resource, "engine", "image", "", &image);
	json_open(o, '{');
	json_key_z(o, "name", "engine");
	if (image.n > 0)
		json_key_str(o, "image", cgn_buf_view(&image));
	else
		desired_image(w, o, "cgn-sim");
	json_key_z(o, "restartPolicy", "Always");
	if (e->command != NULL) {
		struct cgn_str rest = cgn_str_of(e->command);
		json_key_open(o, "command", '[');
		while (rest.p != NULL)
			json_put_str(o, cgn_str_split(&rest, ' '));
		json_close(o, ']');
	}
	arguments_put(o, e, w->resource, model);
	desired_stores_env(w, cluster, cluster_object, strcmp(e->kind, "vllm") == 0, o);
	engine_resources(o, e, w->resource);
	if (is_ours(e))
		desired_restricted(o);
	json_key_open(o, "volumeMounts", '[');
	json_open(o, '{');
	json_key_z(o, "name", "shm");
	json_key_z(o, "mountPath", "/dev/shm");
	json_close(o, '}');
	json_close(o, ']');
	json_close(o, '}');
}

/* The block store ends after the agent too. */
static void store_container(const struct desired_owner *w, struct json_out *o, struct json_val cluster)
{
	json_open(o, '{');
	json_key_z(o, "name", "kvcached");
	desired_image(w, o, "cgn-kvcached");
	json_key_z(o, "restartPolicy", "Always");
	desired_restricted(o);
	desired_mounts(o, desired_is_secured(cluster) ? "kvcached" : NULL);
	json_close(o, '}');
}

static void agent_env(const struct desired_owner *w, struct json_out *o, const struct pool_engine *e)
{
	char drain[24], id[80];
	(void)snprintf(drain, sizeof drain, "%llus",
		(unsigned long long)desired_drain_seconds(w->resource, "drainTimeout", NULL));
	bool daemon = desired_is_daemon(w->resource);
	json_key_open(o, "env", '[');
	desired_env_field(o, "POD_NAME", "metadata.name");
	if (daemon)
		desired_env_field(o, "NODE_NAME", "spec.nodeName");
	desired_env_field(o, "POD_UID", "metadata.uid");
	desired_env_field(o, "POD_IP", "status.podIP");
	/* A node keeps its id when its pod is replaced. Names of a DaemonSet's pods are random. */
	(void)snprintf(id, sizeof id, "%s-$(NODE_NAME)", w->name);
	desired_env(o, "COGNITORA__AGENT__NODE_ID", daemon ? id : "$(POD_NAME)");
	desired_env(o, "COGNITORA__AGENT__ADVERTISE", "$(POD_IP):7080");
	desired_env(o, "COGNITORA__AGENT__LISTEN_ADMIN", "0.0.0.0:7081"); /* For the kubelet's probes. */
	desired_env(o, "COGNITORA__AGENT__DRAIN_TIMEOUT", drain);
	desired_env(o, "COGNITORA__ENGINE__KIND", e->kind);
	desired_env(o, "COGNITORA__ENGINE__URL", "http://127.0.0.1:8000");
	json_close(o, ']');
}

static void agent_container(const struct desired_owner *w, struct json_out *o, const struct pool_engine *e,
	struct json_val cluster)
{
	struct json_val v;
	json_open(o, '{');
	json_key_z(o, "name", "agent");
	desired_image(w, o, "cgn-agent");
	agent_env(w, o, e);
	json_key_open(o, "ports", '[');
	desired_container_port(o, "grpc", 7080);
	desired_container_port(o, "admin", AGENT_ADMIN);
	json_close(o, ']');
	/* The agent is ready when its engine is: a rolling update goes on to the next pod only then. */
	desired_probe(o, "readinessProbe", "/readyz", AGENT_ADMIN, desired_is_secured(cluster));
	desired_probe(o, "livenessProbe", "/healthz", AGENT_ADMIN, desired_is_secured(cluster));
	if (desired_spec(cluster, "agent", "resources", &v) && v.type == JSON_OBJECT) {
		json_key(o, "resources");
		json_put_raw(o, v.raw);
	}
	desired_restricted(o);
	desired_mounts(o, desired_is_secured(cluster) ? "agent" : NULL);
	json_close(o, '}');
}

static void shm_volume(struct json_out *o)
{
	json_open(o, '{');
	json_key_z(o, "name", "shm");
	json_key_open(o, "emptyDir", '{');
	json_key_z(o, "medium", "Memory");
	json_close(o, '}');
	json_close(o, '}');
}

static bool has_selector(struct json_val pool, struct json_val cluster)
{
	struct json_val v;
	return desired_spec(pool, "nodeSelector", NULL, &v) ||
		desired_spec(cluster, "agent", "nodeSelector", &v);
}

static void pod_template(const struct desired_owner *w, struct json_out *o, const struct pool_engine *e,
	struct cgn_str model, struct json_val cluster, const char *cluster_object)
{
	char account[DESIRED_NAME_MAX];
	(void)snprintf(account, sizeof account, "%.200s-agent", cluster_object);
	json_key_open(o, "template", '{');
	json_key_open(o, "metadata", '{');
	desired_labels(w, o, "labels", "pool");
	if (desired_is_revoking(cluster)) { /* Programs that run know of no list: they start again. */
		json_key_open(o, "annotations", '{');
		json_key_z(o, "cognitora.dev/revoked", "crl.pem");
		json_close(o, '}');
	}
	json_close(o, '}');
	json_key_open(o, "spec", '{');
	json_key_u64(o, "terminationGracePeriodSeconds",
		desired_drain_seconds(w->resource, "drainTimeout", NULL) + DRAIN_REST_S);
	desired_pod(w, o, cluster, account);
	if (desired_is_daemon(w->resource) && e->tp != NULL && !has_selector(w->resource, cluster)) {
		json_key_open(o, "nodeSelector", '{');
		json_key_z(o, "nvidia.com/gpu.present",
			"true"); /* Label by NVIDIA's GPU feature discovery. */
		json_close(o, '}');
	}
	json_key_open(o, "initContainers", '[');
	engine_container(w, o, e, model, cluster, cluster_object);
	if (desired_number(cluster, "kvcached", "ramGib", 0) > 0)
		store_container(w, o, cluster);
	json_close(o, ']');
	json_key_open(o, "containers", '[');
	agent_container(w, o, e, cluster);
	json_close(o, ']');
	desired_volumes(o, cluster_object);
	if (desired_is_secured(cluster)) {
		desired_tls_volume(o, cluster_object, "agent");
		if (desired_number(cluster, "kvcached", "ramGib", 0) > 0)
			desired_tls_volume(o, cluster_object, "kvcached");
	}
	shm_volume(o);
	json_close(o, ']');
	json_close(o, '}');
	json_close(o, '}');
}

bool desired_is_daemon(struct json_val pool)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf placement = {.n = 0};
	desired_text(pool, "placement", NULL, "", &placement);
	return cgn_str_is(cgn_buf_view(&placement), "DaemonSet");
}

static void set_object(const struct desired_owner *w, const struct pool_engine *e, struct cgn_str model,
	struct json_val cluster, const char *cluster_object)
{
	bool daemon = desired_is_daemon(w->resource);
	struct json_out o =
		desired_begin(w, daemon ? DESIRED_DAEMONSET : DESIRED_STATEFULSET, w->name, "pool");
	json_key_open(&o, "spec", '{');
	if (!daemon) {
		json_key_u64(&o, "replicas", desired_number(w->resource, "replicas", NULL, 1));
		json_key_z(&o, "serviceName", w->name);
		json_key_z(&o, "podManagementPolicy", "Parallel");
	}
	json_key_u64(&o, "minReadySeconds", 10);
	json_key_open(&o, "updateStrategy", '{');
	json_key_z(&o, "type", "RollingUpdate");
	json_close(&o, '}');
	json_key_open(&o, "selector", '{');
	desired_labels(w, &o, "matchLabels", "pool");
	json_close(&o, '}');
	pod_template(w, &o, e, model, cluster, cluster_object);
	json_close(&o, '}');
	desired_end(w, &o);
}

/* A Service without an address of its own gives the pods their names. */
static void headless_object(const struct desired_owner *w)
{
	struct json_out o = desired_begin(w, DESIRED_SERVICE, w->name, "pool");
	json_key_open(&o, "spec", '{');
	json_key_z(&o, "clusterIP", "None");
	json_key_bool(&o, "publishNotReadyAddresses", true);
	desired_labels(w, &o, "selector", "pool");
	json_key_open(&o, "ports", '[');
	json_open(&o, '{');
	json_key_z(&o, "name", "grpc");
	json_key_u64(&o, "port", 7080);
	json_key_z(&o, "protocol", "TCP");
	json_close(&o, '}');
	json_close(&o, ']');
	json_close(&o, '}');
	desired_end(w, &o);
}

CGN_RC desired_of_pool(struct json_val pool, struct json_val cluster, const struct desired_images *images,
	struct desired_set *out, struct cgn_err *err)
{
	struct desired_owner w;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf model = {.n = 0}, kind = {.n = 0}, image = {.n = 0};
	char cluster_object[DESIRED_NAME_MAX];
	CGN_TRY(desired_owner_read(pool, DESIRED_POOL, images, out, &w, err));
	if (!desired_meta(cluster, "name", cluster_object, sizeof cluster_object))
		return CGN_FAIL(err, INVALID, "the InferenceCluster has no name");
	desired_cluster_name(cluster, w.cluster, sizeof w.cluster);
	desired_text(pool, "model", NULL, "", &model);
	desired_text(pool, "engine", "kind", "sim", &kind);
	desired_text(pool, "engine", "image", "", &image);
	const struct pool_engine *e = engine_find(cgn_buf_view(&kind));
	if (e == NULL)
		return CGN_FAIL(err, INVALID,
			"spec.engine.kind \"%.40s\" is not known: sim, llama_cpp, vllm or sglang",
			cgn_buf_z(&kind));
	if (model.n == 0)
		return CGN_FAIL(err, INVALID, "spec.model is missing");
	if (!is_ours(e) && image.n == 0)
		return CGN_FAIL(err, INVALID,
			"spec.engine.image is missing: kind %s needs the image of its engine", e->kind);
	headless_object(&w);
	set_object(&w, e, cgn_buf_view(&model), cluster, cluster_object);
	if (!desired_is_daemon(
		    pool)) { /* A machine is drained without the pods of its DaemonSets, which no budget can count. */
		desired_budget(&w, w.name, "pool");
		CGN_TRY(desired_autoscaling(&w, err));
	}
	return out->text.bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the objects of %s", w.name) : CGN_OK;
}
