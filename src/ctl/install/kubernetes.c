/* SPDX-License-Identifier: Apache-2.0 */
/* kubernetes: the operator, a cluster and a pool of a model in a Kubernetes cluster, by kubectl. Applied
 * fields have the field manager cgn-ctl; fields that others set stay theirs. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "ctl/install/install.h"
#include "ctl/run.h"

#define OPERATOR_SPACE "cognitora-system"
#define MAX_ARGS       16
#define MANAGER        "--field-manager=" INSTALL_MANAGER

struct kube {
	const char *context, *space, *name;
	char wait[40];                    /* "--timeout=300s" */
	struct cgn_buf operator, cluster; /* Manifests. */
	bool apply, waits;
};

/* ---- kubectl ---- */

static void line_make(const struct kube *k, const char *const *args, const char *argv[MAX_ARGS + 4])
{
	size_t n = 0;
	argv[n++] = "kubectl";
	if (k->context != NULL) {
		argv[n++] = "--context";
		argv[n++] = k->context;
	}
	for (size_t i = 0; args[i] != NULL && i < MAX_ARGS; i++)
		argv[n++] = args[i];
	argv[n] = NULL;
}

/* Run kubectl with its output shown; |input| may be NULL. */
static int kubectl_run(const struct kube *k, const struct cgn_buf *input, const char *const *args)
{
	const char *argv[MAX_ARGS + 4];
	const struct cgn_str text = input != NULL ? cgn_buf_view(input) : CGN_STR("");
	line_make(k, args, argv);
	return ctl_run_shown((char **)(uintptr_t)argv, input != NULL ? &text : NULL);
}

/* Ask kubectl; the answer is kept. */
static int kubectl_ask(const struct kube *k, struct cgn_buf *out, const char *const *args)
{
	const char *argv[MAX_ARGS + 4];
	line_make(k, args, argv);
	return ctl_run_read(argv, 60 * CGN_SEC, out);
}

/* Is the object there? It is not when kubectl says that it is not found; any other failure is an error. */
static CGN_RC kube_has(const struct kube *k, const char *kind, const char *name, bool *there,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf said = {0};
	const char *const args[] = {"get", kind, name, "-n", k->space, "-o", "name", "--ignore-not-found",
		NULL};
	if (kubectl_ask(k, &said, args) != 0)
		return CGN_FAIL(err, UNAVAILABLE, "kubectl get %s %s failed: %s", kind, name,
			ctl_shown(cgn_buf_z(&said)));
	*there = said.n > 0;
	return CGN_OK;
}

/* Does the API server answer? */
static CGN_RC kube_reach(const struct kube *k, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf said = {0};
	const char *const args[] = {"get", "--raw", "/readyz", "--request-timeout=15s", NULL};
	int status = kubectl_ask(k, &said, args);
	if (status == 0)
		return CGN_OK;
	if (said.n == 0)
		return CGN_FAIL(err, UNAVAILABLE,
			"kubectl cannot be run, or said nothing for a minute: install kubectl, then see kubectl cluster-info");
	return CGN_FAIL(err, UNAVAILABLE,
		"no Kubernetes answers: %s (kubectl config current-context shows which is asked; --context takes another)",
		ctl_shown(cgn_buf_z(&said)));
}

/* ---- manifests ---- */

static void env_put(struct cgn_buf *out, const char *name, const char *value)
{
	struct json_out o = json_out_to(out); /* A string of JSON is one of YAML. */
	cgn_buf_fmt(out, "        - {name: %s, value: ", name);
	json_put_z(&o, value);
	cgn_buf_putz(out, "}\n");
}

/* Append |text| with the operator's image and, in its environment, where other images are. */
static void operator_put(const struct ctl_args *a, const char *text, struct cgn_buf *out)
{
	static const char image[] = "image: cognitora/cgn-operator:0.1.0\n", env[] = "        env:\n";
	const char *prefix = ctl_flag(a, "--image-prefix"), *tag = ctl_flag(a, "--image-tag");
	const char *at = strstr(text, image), *list = strstr(text, env);
	CGN_MUST(at != NULL && list == at + strlen(image));
	cgn_buf_str(out, (struct cgn_str){text, (size_t)(at - text)});
	cgn_buf_fmt(out, "image: %scgn-operator:%s\n%s", prefix, tag, env);
	env_put(out, "COGNITORA__OPERATOR__IMAGE_PREFIX", prefix);
	env_put(out, "COGNITORA__OPERATOR__IMAGE_TAG", tag);
	cgn_buf_putz(out, list + strlen(env));
}

static void operator_write(const struct ctl_args *a, struct cgn_buf *out)
{
	for (const struct install_source *f = NULL; (f = install_source_next("kustomize/", f)) != NULL;) {
		cgn_buf_putz(out, "---\n");
		if (strcmp(f->name, "kustomize/operator.yaml") == 0)
			operator_put(a, f->text, out);
		else
			cgn_buf_putz(out, f->text);
	}
}

/* Begin an object of ours; the caller writes into its spec and closes twice. */
static void object_open(struct json_out *o, const struct kube *k, const char *kind)
{
	json_open(o, '{');
	json_key_z(o, "apiVersion", "cognitora.dev/v1alpha1");
	json_key_z(o, "kind", kind);
	json_key_open(o, "metadata", '{');
	json_key_z(o, "name", k->name);
	json_key_z(o, "namespace", k->space);
	json_close(o, '}');
	json_key_open(o, "spec", '{');
}

static void object_close(struct json_out *o)
{
	json_close(o, '}');
	json_close(o, '}');
	cgn_buf_putz(o->b, "\n---\n");
}

/* Numbers that the flags name. */
struct kube_sizes {
	uint64_t routers, replicas;
	bool given; /* --replicas is there. */
	bool named; /* The manifest of the pool names its replicas: not where another one sets them. */
};

/* Read the flags before Kubernetes is asked. */
static CGN_RC sizes_read(const struct ctl_args *a, struct kube_sizes *out, struct cgn_err *err)
{
	*out = (struct kube_sizes){.given = ctl_flag(a, "--replicas") != NULL};
	CGN_TRY(ctl_flag_u64(a, "--routers", 1, 100, &out->routers, err));
	if (out->given)
		CGN_TRY(ctl_flag_u64(a, "--replicas", 0, 4096, &out->replicas, err));
	if (ctl_flag(a, "--engine-image") != NULL || strcmp(ctl_flag(a, "--engine"), "sim") == 0)
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "--engine %s needs --engine-image: the image that has the engine",
		ctl_flag(a, "--engine"));
}

static CGN_RC replicas_decide(const struct kube *k, struct kube_sizes *s, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf said = {0};
	const char *const args[] = {"get", "modelpool", k->name, "-n", k->space, "-o", "json",
		"--show-managed-fields", "--ignore-not-found", NULL};
	struct install_pool pool = {.there = false};
	uint64_t wanted = s->replicas;
	bool has_kinds;
	CGN_TRY(kube_has(k, "crd", "modelpools.cognitora.dev", &has_kinds, err));
	if (has_kinds && kubectl_ask(k, &said, args) != 0)
		return CGN_FAIL(err, UNAVAILABLE, "kubectl get modelpool %s failed: %s", k->name,
			ctl_shown(cgn_buf_z(&said)));
	CGN_TRY(install_pool_read(cgn_buf_view(&said), &pool, err));
	return install_pool_replicas(&pool, k->name, s->given ? &wanted : NULL, &s->named, &s->replicas, err);
}

static CGN_RC cluster_write(const struct ctl_args *a, struct kube *k, const struct kube_sizes *s,
	struct cgn_err *err)
{
	struct json_out o = json_out_to(&k->cluster);
	const char *engine = ctl_flag(a, "--engine"), *image = ctl_flag(a, "--engine-image"), *arg;
	object_open(&o, k, "InferenceCluster");
	json_key_open(&o, "router", '{');
	json_key_u64(&o, "replicas", s->routers);
	json_close(&o, '}');
	object_close(&o);
	o = json_out_to(&k->cluster);
	object_open(&o, k, "ModelPool");
	json_key_z(&o, "cluster", k->name);
	json_key_z(&o, "model", ctl_flag(a, "--model"));
	if (s->named)
		json_key_u64(&o, "replicas", s->replicas);
	json_key_open(&o, "engine", '{');
	json_key_z(&o, "kind", engine);
	if (image != NULL)
		json_key_z(&o, "image", image);
	if (ctl_flag_nth(a, "--engine-arg", 0) != NULL) {
		json_key_open(&o, "args", '[');
		for (size_t i = 0; (arg = ctl_flag_nth(a, "--engine-arg", i)) != NULL; i++)
			json_put_z(&o, arg);
		json_close(&o, ']');
	}
	json_close(&o, '}');
	object_close(&o);
	return k->cluster.bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the manifests") : CGN_OK;
}

/* ---- install ---- */

static CGN_RC kube_of(const struct ctl_args *a, struct kube *k, struct cgn_err *err)
{
	cgn_nsec wait;
	*k = (struct kube){.context = ctl_flag(a, "--context"),
		.space = ctl_flag(a, "--namespace"),
		.name = ctl_flag(a, "--name"),
		.apply = ctl_switch(a, "--apply")};
	CGN_TRY(ctl_flag_duration(a, "--wait", &wait, err));
	k->waits = wait > 0;
	(void)snprintf(k->wait, sizeof k->wait, "--timeout=%llus",
		(unsigned long long)((wait + CGN_SEC - 1) / CGN_SEC));
	return CGN_OK;
}

static void kube_fini(struct kube *k)
{
	cgn_buf_fini(&k->operator);
	cgn_buf_fini(&k->cluster);
}

/* Show how the cluster's objects differ from the manifests. An object whose kind or namespace is not there yet cannot
 * be compared by the API server: the manifests are shown. */
static CGN_RC part_show(const struct kube *k, const struct cgn_buf *manifests, bool compare, bool *differs,
	struct cgn_err *err)
{
	const char *const diff[] = {"diff", "--server-side", MANAGER, "-f", "-", NULL};
	*differs = true;
	if (!compare) {
		struct cgn_str rest = cgn_buf_view(manifests);
		while (rest.n > 0) {
			struct cgn_str line = cgn_str_split(&rest, '\n');
			printf("+%.*s\n", CGN_STR_ARG(line));
		}
		return CGN_OK;
	}
	int status = kubectl_run(k, manifests, diff);
	*differs = status == 1;
	return status <= 1
		? CGN_OK
		: CGN_FAIL(err, UNAVAILABLE,
			  "kubectl diff failed; what it says is above. A conflict names who else sets the field");
}

static CGN_RC part_apply(const struct kube *k, const struct cgn_buf *manifests, struct cgn_err *err)
{
	const char *const apply[] = {"apply", "--server-side", MANAGER, "-f", "-", NULL};
	return kubectl_run(k, manifests, apply) == 0
		? CGN_OK
		: CGN_FAIL(err, UNAVAILABLE, "kubectl apply failed; what it says is above");
}

/* The operator, and the wait until it runs. Kinds are always waited for: without them nothing else can be applied. */
static CGN_RC operator_apply(const struct kube *k, struct cgn_err *err)
{
	const char *const kinds[] = {"wait", "--for=condition=Established", "--timeout=60s",
		"crd/inferenceclusters.cognitora.dev", "crd/modelpools.cognitora.dev",
		"crd/routingpolicies.cognitora.dev", NULL};
	const char *const runs[] = {"rollout", "status", "-n", OPERATOR_SPACE, "deployment/cgn-operator",
		k->wait, NULL};
	CGN_TRY(part_apply(k, &k->operator, err));
	if (kubectl_run(k, NULL, kinds) != 0)
		return CGN_FAIL(err, UNAVAILABLE,
			"Kubernetes did not take the kinds of cognitora.dev within a minute");
	if (!k->waits || kubectl_run(k, NULL, runs) == 0)
		return CGN_OK;
	return CGN_FAIL(err, DEADLINE,
		"the operator does not run: see kubectl -n " OPERATOR_SPACE
		" describe pods. Run this again to go on");
}

static CGN_RC cluster_apply(const struct kube *k, bool has_space, struct cgn_err *err)
{
	char what[120];
	const char *const space[] = {"create", "namespace", k->space, NULL};
	const char *const ready[] = {"wait", "-n", k->space, "--for=jsonpath={.status.phase}=Ready", what,
		k->wait, NULL};
	if (!has_space && kubectl_run(k, NULL, space) != 0)
		return CGN_FAIL(err, UNAVAILABLE, "cannot make the namespace %s; what kubectl says is above",
			k->space);
	CGN_TRY(part_apply(k, &k->cluster, err));
	(void)snprintf(what, sizeof what, "inferencecluster/%.100s", k->name);
	if (!k->waits || kubectl_run(k, NULL, ready) == 0)
		return CGN_OK;
	return CGN_FAIL(err, DEADLINE,
		"the cluster is not ready: see kubectl -n %s describe inferencecluster %s", k->space,
		k->name);
}

static CGN_RC kube_install(struct kube *k, struct cgn_err *err)
{
	bool has_kinds, has_home, has_space, changed_operator, changed_cluster;
	CGN_TRY(kube_has(k, "crd", "modelpools.cognitora.dev", &has_kinds, err));
	CGN_TRY(kube_has(k, "namespace", OPERATOR_SPACE, &has_home, err));
	CGN_TRY(kube_has(k, "namespace", k->space, &has_space, err));
	CGN_TRY(part_show(k, &k->operator, has_home, &changed_operator, err));
	CGN_TRY(part_show(k, &k->cluster, has_space && has_kinds, &changed_cluster, err));
	if (!changed_operator && !changed_cluster)
		printf("nothing to do: the cluster has these objects\n");
	else if (!k->apply)
		printf("nothing was applied; with --apply this would be\n");
	if (!k->apply || (!changed_operator && !changed_cluster))
		return CGN_OK;
	CGN_TRY(operator_apply(k, err));
	CGN_TRY(cluster_apply(k, has_space, err));
	printf("next:\n  kubectl -n %s port-forward service/%s-router 8080:8080\n"
	       "  curl http://127.0.0.1:8080/v1/models\n",
		k->space, k->name);
	return CGN_OK;
}

CGN_RC ctl_install_kubernetes(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(kube_fini) struct kube k;
	struct kube_sizes sizes;
	cgn_rc rc = kube_of(a, &k, err);
	if (!cgn_ok(rc))
		return rc;
	CGN_TRY(sizes_read(a, &sizes, err));
	operator_write(a, &k.operator);
	CGN_TRY(kube_reach(&k, err));
	CGN_TRY(replicas_decide(&k, &sizes, err));
	CGN_TRY(cluster_write(a, &k, &sizes, err));
	return kube_install(&k, err);
}

/* ---- uninstall ---- */

/* Is there a resource of another cluster, in any namespace? */
static CGN_RC others_look(const struct kube *k, bool *others, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf said = {0};
	const char *const args[] = {"get", "inferenceclusters,modelpools", "-A", "--no-headers", "-o",
		"custom-columns=S:.metadata.namespace,N:.metadata.name", "--ignore-not-found", NULL};
	if (kubectl_ask(k, &said, args) != 0)
		return CGN_FAIL(err, UNAVAILABLE, "kubectl get inferenceclusters failed: %s",
			ctl_shown(cgn_buf_z(&said)));
	struct cgn_str rest = cgn_buf_view(&said);
	*others = false;
	while (rest.n > 0) {
		struct cgn_str line = cgn_str_split(&rest, '\n'), space = cgn_str_split(&line, ' ');
		if (space.n == 0)
			continue;
		if (cgn_str_is(space, k->space) && cgn_str_is(cgn_str_trim(line), k->name))
			continue;
		printf("keep    the operator: %.*s/%.*s uses it\n", CGN_STR_ARG(space),
			CGN_STR_ARG(cgn_str_trim(line)));
		*others = true;
	}
	return CGN_OK;
}

static CGN_RC kube_remove(const struct kube *k, bool with_operator, struct cgn_err *err)
{
	bool there;
	const char *const ours[] = {"delete", "modelpool,inferencecluster", k->name, "-n", k->space,
		"--ignore-not-found", k->waits ? k->wait : "--wait=false", NULL};
	const char *const all[] = {"delete", "-f", "-", "--ignore-not-found",
		k->waits ? k->wait : "--wait=false", NULL};
	if (kubectl_run(k, NULL, ours) != 0)
		return CGN_FAIL(err, UNAVAILABLE,
			"kubectl delete failed or did not end in time; what it says is above. Run this again to go on");
	/* The operator ends them in order, and has to be there for it. */
	CGN_TRY(kube_has(k, "modelpool,inferencecluster", k->name, &there, err));
	if (with_operator && there)
		printf("the operator stays until their pods have ended: run this again then, or with --wait\n");
	else if (with_operator && kubectl_run(k, &k->operator, all) != 0)
		return CGN_FAIL(err, UNAVAILABLE, "kubectl delete failed; what it says is above");
	printf("the namespace %s stays: kubectl delete namespace %s removes it with all that is in it\n",
		k->space, k->space);
	return CGN_OK;
}

CGN_RC ctl_uninstall_kubernetes(const struct ctl_args *a, struct cgn_err *err)
{
	bool has_kinds = false, others = false;
	CGN_ON_EXIT(kube_fini) struct kube k;
	cgn_rc rc = kube_of(a, &k, err);
	if (!cgn_ok(rc))
		return rc;
	CGN_TRY(kube_reach(&k, err));
	CGN_TRY(kube_has(&k, "crd", "modelpools.cognitora.dev", &has_kinds, err));
	if (!has_kinds)
		return CGN_FAIL(err, NOT_FOUND,
			"this Kubernetes has no kinds of cognitora.dev: nothing is installed");
	CGN_TRY(others_look(&k, &others, err));
	printf("remove  modelpool/%s and inferencecluster/%s of namespace %s\n", k.name, k.name, k.space);
	if (!others)
		printf("remove  the operator, its rights, its namespace " OPERATOR_SPACE
		       " and the kinds of cognitora.dev\n");
	if (!k.apply) {
		printf("nothing was removed; with --apply this would be\n");
		return CGN_OK;
	}
	for (const struct install_source *f = NULL; (f = install_source_next("kustomize/", f)) != NULL;)
		cgn_buf_fmt(&k.operator, "---\n%s", f->text);
	return kube_remove(&k, !others, err);
}
