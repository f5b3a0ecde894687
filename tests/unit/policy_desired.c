/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of resources, compared with tests/unit/desired/NAME.json: {"cluster", "policy", "pool", "objects"}. With CGN_GOLDEN_SHOW=1 the
 * objects are printed instead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/codec/codec.h"
#include "io/os/disk/disk.h"
#include "policy/config/config.h"
#include "policy/fleet/desired/desired.h"
#include "policy/fleet/settings/settings.h"
#include "policy/route/routing/document.h"

static const struct desired_images images = {"cognitora/", "1.2.3"};

/* Find the file from the program's folder, of which __FILE__ is relative. */
static void golden_read(const char *name, struct cgn_buf *out)
{
	char exe[512], path[1024];
	struct cgn_err err;
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	assert_true(n > 0);
	exe[n] = '\0';
	*strrchr(exe, '/') = '\0';
	const char *here = __FILE__;
	(void)snprintf(path, sizeof path, "%s/%.*s/desired/%s.json", here[0] == '/' ? "" : exe,
		(int)(strrchr(here, '/') - here), here, name);
	if (!cgn_ok(disk_read_file(path, 1 << 20, out, &err)))
		fail_msg("%s", err.msg);
}

/* Append |json| without the space between its tokens. */
static void compact_put(struct cgn_str json, struct cgn_buf *out)
{
	bool quoted = false;
	for (size_t i = 0; i < json.n; i++) {
		char c = json.p[i];
		if (quoted && c == '\\') {
			cgn_buf_char(out, c);
			c = json.p[++i];
		} else if (c == '"') {
			quoted = !quoted;
		} else if (!quoted && (c == ' ' || c == '\n')) {
			continue;
		}
		cgn_buf_char(out, c);
	}
}

static void objects_put(const struct desired_set *s, struct cgn_buf *out)
{
	for (size_t i = 0; i < s->n; i++) {
		struct json_val v;
		assert_true(cgn_ok(json_parse(desired_body(s, &s->objects[i]), &v, NULL, NULL)));
		cgn_buf_char(out, i == 0 ? '[' : ',');
		compact_put(desired_body(s, &s->objects[i]), out); /* Members are copied with their space. */
	}
	cgn_buf_char(out, ']');
}

static void golden_check(const char *name)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0}, made = {.n = 0}, wanted = {.n = 0};
	CGN_ON_EXIT(desired_set_fini) struct desired_set set = {.n = 0};
	struct json_val file, cluster, policy, pool, objects;
	struct cgn_err err = {.msg = ""};
	golden_read(name, &text);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&text), &file, NULL, &err)));
	assert_true(json_get(file, "cluster", &cluster));
	const struct desired_routing routing = {.policy = json_get(file, "policy", &policy) ? &policy : NULL};
	cgn_rc rc = json_get(file, "pool", &pool)
		? desired_of_pool(pool, cluster, &images, &set, &err)
		: desired_of_cluster(cluster, &routing, &images, &set, &err);
	if (!cgn_ok(rc))
		fail_msg("%s: %s", name, err.msg);
	objects_put(&set, &made);
	if (getenv("CGN_GOLDEN_SHOW") != NULL) {
		printf("GOLDEN %s %s\n", name, cgn_buf_z(&made));
		return;
	}
	assert_true(json_get(file, "objects", &objects));
	compact_put(objects.raw, &wanted);
	assert_string_equal(cgn_buf_z(&made), cgn_buf_z(&wanted));
}

static void resources_stand_for_their_objects(void **state)
{
	static const char *const names[] = {"cluster-plain", "cluster-full", "pool-sim", "pool-vllm",
		"pool-sglang", "cluster-secured", "pool-secured", "pool-daemon", "pool-autoscaled",
		"cluster-stores", "cluster-stores-plain", "pool-stores"};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		golden_check(names[i]);
}

#define META "\"metadata\":{\"name\":\"x\",\"namespace\":\"n\",\"uid\":\"u\"}"

static void a_resource_that_cannot_be_made_says_why(void **state)
{
	static const struct {
		const char *pool, *said;
	} pools[] = {
		{"{" META ",\"spec\":{}}", "spec.model is missing"},
		{"{" META ",\"spec\":{\"model\":7}}", "spec.model is missing"},
		{"{" META ",\"spec\":{\"model\":\"m\",\"engine\":{\"kind\":\"tgi\"}}}",
			"\"tgi\" is not known"},
		{"{" META ",\"spec\":{\"model\":\"m\",\"engine\":{\"kind\":\"vllm\"}}}",
			"spec.engine.image is missing"},
		{"{" META ",\"spec\":{\"model\":\"m\",\"autoscaling\":{\"max\":2}}}",
			"spec.autoscaling needs min"},
		{"{" META ",\"spec\":{\"model\":\"m\",\"autoscaling\":{\"min\":3,\"max\":2,\"target\":4}}}",
			"spec.autoscaling needs min"},
		{"{" META
		 ",\"spec\":{\"model\":\"m\",\"autoscaling\":{\"max\":2,\"target\":4,\"metric\":\"moon\"}}}",
			"metric running, waiting or cpu"},
		{"{\"metadata\":{\"name\":\"x\"}}", "at most 47"},
		{"{\"metadata\":{\"name\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"namespace\":\"n\",\"uid\":\"u\"}}",
			"at most 47"},
	};
	struct json_val pool, cluster;
	(void)state;
	assert_true(cgn_ok(json_parse(CGN_STR("{" META "}"), &cluster, NULL, NULL)));
	for (size_t i = 0; i < CGN_COUNT(pools); i++) {
		CGN_ON_EXIT(desired_set_fini) struct desired_set set = {.n = 0};
		struct cgn_err err = {.msg = ""};
		assert_true(cgn_ok(json_parse(cgn_str_of(pools[i].pool), &pool, NULL, NULL)));
		assert_false(cgn_ok(desired_of_pool(pool, cluster, &images, &set, &err)));
		if (strstr(err.msg, pools[i].said) == NULL)
			fail_msg("%s: \"%s\"", pools[i].pool, err.msg);
	}
}

/* Append the policy document of the cluster's Secret; nothing if there is none. */
static void document_of(const char *policy_text, struct cgn_buf *out)
{
	CGN_ON_EXIT(desired_set_fini) struct desired_set set = {.n = 0};
	struct json_val cluster, policy, secret, data, v;
	assert_true(cgn_ok(json_parse(CGN_STR("{" META "}"), &cluster, NULL, NULL)));
	assert_true(cgn_ok(json_parse(cgn_str_of(policy_text), &policy, NULL, NULL)));
	const struct desired_routing routing = {.policy = &policy};
	assert_true(cgn_ok(desired_of_cluster(cluster, &routing, &images, &set, NULL)));
	for (size_t i = 0; i < set.n; i++)
		if (set.objects[i].kind == DESIRED_SECRET) {
			assert_true(
				cgn_ok(json_parse(desired_body(&set, &set.objects[i]), &secret, NULL, NULL)));
			if (json_get(secret, "data", &data) && json_get(data, "policy", &v))
				assert_true(base64_get(out, (struct cgn_str){v.raw.p + 1, v.raw.n - 2}));
		}
}

/* Routers take the document that is written. */
static void weights_become_a_document_that_routers_read(void **state)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0}, none = {.n = 0};
	struct route_document d;
	struct cgn_err err = {.msg = ""};
	(void)state;
	document_of("{\"spec\":{\"scoreWeights\":{\"kv\":0.4,\"load\":0.4,\"power\":0.1,\"capacity\":0.1}}}",
		&text);
	if (!cgn_ok(route_document_read(cgn_buf_view(&text), &d, &err)))
		fail_msg("%s", err.msg);
	assert_true(d.has_weights && d.has_policy && d.policy == ROUTE_WEIGHTED);
	document_of("{\"spec\":{\"admission\":{}}}", &none);
	assert_int_equal(none.n, 0);
}

/* Load the configuration of a cluster with that RoutingPolicy (NULL: none) and these ModelPools, a list. */
static struct config *config_with_pools(const char *policy_text, const char *pools_text)
{
	CGN_ON_EXIT(desired_set_fini) struct desired_set set = {.n = 0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf toml = {.n = 0};
	struct json_val cluster, policy, list, map, data, v, pools[8];
	struct config *c = NULL;
	struct cgn_err err = {.msg = ""};
	struct desired_routing routing = {.policy = policy_text != NULL ? &policy : NULL, .pools = pools};
	assert_true(cgn_ok(json_parse(CGN_STR("{" META "}"), &cluster, NULL, NULL)));
	assert_true(policy_text == NULL || cgn_ok(json_parse(cgn_str_of(policy_text), &policy, NULL, NULL)));
	assert_true(cgn_ok(json_parse(cgn_str_of(pools_text), &list, NULL, NULL)));
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &pools[routing.n_pools]);)
		routing.n_pools++;
	assert_true(cgn_ok(desired_of_cluster(cluster, &routing, &images, &set, NULL)));
	assert_int_equal(set.objects[0].kind, DESIRED_CONFIGMAP);
	assert_true(cgn_ok(json_parse(desired_body(&set, &set.objects[0]), &map, NULL, NULL)));
	assert_true(json_get(map, "data", &data) && json_get(data, "cognitora.toml", &v));
	json_str_to(v, &toml);
	if (!cgn_ok(settings_load("cognitora.toml", cgn_buf_view(&toml), NULL, NULL, 0, &c, &err)))
		fail_msg("%s\n%s", err.msg, cgn_buf_z(&toml));
	return c;
}

static struct config *config_of(const char *policy_text)
{
	return config_with_pools(policy_text, "[]");
}

static void a_cascade_becomes_settings_that_routers_read(void **state)
{
	(void)state;
	struct config *c = config_of(
		"{\"spec\":{\"cascade\":{\"enabled\":true,\"smallModel\":\"a\\\"b/\\u00e9.1\",\"largeModel\":\"l\",\"gate\":\"logprob\","
		"\"confidenceThreshold\":-2,\"tokens\":8,\"pregate\":1,\"calibrationShare\":1e-2,\"maxError\":0,"
		"\"judgeModel\":\"j\",\"judgeSimilarity\":-1,"
		"\"chains\":[{\"model\":\"g\",\"smallModels\":[\"a\\\"b/\\u00e9.1\",\"m\"]},{\"model\":\"m\",\"smallModels\":[\"l\"]}],"
		"\"thresholds\":[{\"model\":\"m\",\"confidenceThreshold\":-0.5},{\"model\":\"l\",\"confidenceThreshold\":0}]}}}");
	assert_true(c->router.cascade.enabled);
	assert_string_equal(c->router.cascade.small_model, "a\"b/\303\251.1");
	assert_string_equal(c->router.cascade.large_model, "l");
	assert_true(c->router.cascade.confidence_threshold == -2 && c->router.cascade.tokens == 8);
	assert_true(c->router.cascade.pregate == 1 && c->router.cascade.calibration_share == 0.01);
	assert_true(c->router.cascade.max_error == 0 && c->router.cascade.judge_similarity == -1);
	assert_string_equal(c->router.cascade.judge_model, "j");
	const struct config_model *g = config_model_find(c, "g"), *m = config_model_find(c, "m"),
				  *l = config_model_find(c, "l");
	assert_true(g != NULL && m != NULL && l != NULL);
	assert_int_equal(g->cascade.n, 2);
	assert_string_equal(g->cascade.v[0], "a\"b/\303\251.1");
	assert_string_equal(g->cascade.v[1], "m");
	assert_true(m->cascade.n == 1 && m->confidence_threshold == -0.5);
	assert_true(l->cascade.n == 0 && l->confidence_threshold == 0 && g->confidence_threshold > 0);
	config_free(&c);
}

/* Members that the API server would not admit are left out; the others count. */
static void members_of_another_type_are_left_out(void **state)
{
	(void)state;
	struct config *c = config_of(
		"{\"spec\":{\"cascade\":{\"enabled\":null,\"tokens\":[1],\"pregate\":0.5,\"chains\":[7,{},{\"model\":1},{\"model\":\"g\"},"
		"{\"model\":\"h\",\"smallModels\":[1,\"a\"]}],\"thresholds\":[{\"model\":\"a\"},{\"confidenceThreshold\":-1}]}}}");
	assert_false(c->router.cascade.enabled);
	assert_true(c->router.cascade.tokens == 16 && c->router.cascade.pregate == 0.5);
	assert_int_equal(c->n_models, 1);
	assert_true(c->models[0].cascade.n == 1 && strcmp(c->models[0].name, "h") == 0);
	config_free(&c);
}

#define POOL(model, cascade) "{\"spec\":{\"model\":\"" model "\",\"cascade\":" cascade "}}"

/* Pools alone turn cascades on; of two pools of a model the first counts, and an odd one counts for nothing. */
static void cascades_of_pools_become_settings(void **state)
{
	(void)state;
	struct config *c = config_with_pools(NULL,
		"[" POOL("g", "{\"smallModels\":[\"s\",\"m\"]}") "," POOL("g",
			"{\"smallModels\":[\"x\"]}") "," POOL("s",
			"{\"confidenceThreshold\":-0.5}") "," POOL("s",
			"{\"confidenceThreshold\":-0.6}") "," POOL("o",
			"{\"smallModels\":7,\"confidenceThreshold\":\"x\"}") ",{\"spec\":{\"cascade\":{}}}]");
	const struct config_model *g = config_model_find(c, "g"), *s = config_model_find(c, "s");
	assert_true(c->router.cascade.enabled && g != NULL && s != NULL && config_model_find(c, "x") == NULL);
	assert_true(
		g->cascade.n == 2 && strcmp(g->cascade.v[0], "s") == 0 && strcmp(g->cascade.v[1], "m") == 0);
	assert_true(s->confidence_threshold == -0.5 && config_model_find(c, "o") == NULL);
	config_free(&c);
	c = config_with_pools(NULL, "[" POOL("s", "{\"confidenceThreshold\":-0.5}") "]");
	assert_false(c->router.cascade.enabled); /* A threshold alone does not make a cascade. */
	config_free(&c);
}

static void a_policy_counts_before_the_cascades_of_pools(void **state)
{
	static const char pools[] = "[" POOL("g", "{\"smallModels\":[\"s\"]}") "," POOL("l",
		"{\"smallModels\":[\"s\"]}") "," POOL("s", "{\"confidenceThreshold\":-0.5}") "," POOL("h",
		"{\"smallModels\":[\"s\"]}") "]";
	(void)state;
	struct config *c = config_with_pools(
		"{\"spec\":{\"cascade\":{\"enabled\":false,\"smallModel\":\"t\",\"largeModel\":\"l\","
		"\"chains\":[{\"model\":\"g\",\"smallModels\":[\"t\",\"l\"]}],"
		"\"thresholds\":[{\"model\":\"s\",\"confidenceThreshold\":-2}]}}}",
		pools);
	const struct config_model *g = config_model_find(c, "g"), *h = config_model_find(c, "h"),
				  *s = config_model_find(c, "s");
	assert_false(c->router.cascade.enabled); /* The policy says so. */
	assert_true(g != NULL && g->cascade.n == 2 && config_model_find(c, "l") == NULL);
	assert_true(h != NULL && h->cascade.n == 1 && s != NULL && s->confidence_threshold == -2);
	config_free(&c);
	c = config_with_pools("{\"spec\":{\"admission\":{\"maxQueue\":7}}}", pools);
	assert_true(c->router.cascade.enabled &&
		c->router.admission.max_queue == 7); /* This one says nothing of cascades. */
	config_free(&c);
}

/* ---- owners ---- */

#define OURS(extra)                                                                     \
	"{\"metadata\":{\"labels\":{\"app.kubernetes.io/managed-by\":\"cgn-operator\"," \
	"\"cognitora.dev/owner\":\"cluster.prod\",\"cognitora.dev/cluster\":\"prod\"" extra "}"
#define HELD(kind, name, uid, controller)                                                                     \
	",\"ownerReferences\":[{\"kind\":\"ReplicaSet\",\"name\":\"first\",\"uid\":\"u0\"},{\"kind\":\"" kind \
	"\",\"name\":\"" name "\",\"uid\":\"" uid "\",\"controller\":" controller "}]"

static void test_objects_of_others_are_told_apart(void **state)
{
	static const char wanted[] = OURS("") HELD("InferenceCluster", "prod", "u1", "true") "}}";
	static const char state_wanted[] = OURS(",\"app.kubernetes.io/component\":\"state\"")
		HELD("InferenceCluster", "prod", "u1", "true") "}}";
	static const struct {
		const char *found, *wanted, *who; /* |who| NULL: it may be changed. */
	} cases[] = {
		{wanted, wanted, NULL},
		{OURS("") "}}", wanted, NULL}, /* The resource was deleted, the object kept. */
		{OURS("") HELD("InferenceCluster", "prod", "u1", "false") "}}", wanted, NULL},
		{OURS("") HELD("InferenceCluster", "prod", "u2", "true") "}}", wanted,
			"belongs to InferenceCluster prod"},
		{OURS("") HELD("Deployment", "web", "u3", "true") "}}", wanted, "belongs to Deployment web"},
		{"{\"metadata\":{\"name\":\"x\"}}", wanted, "was made by others"},
		{"{}", wanted, "was made by others"},
		{"{\"metadata\":{\"labels\":{\"app.kubernetes.io/managed-by\":\"cgn-operator\",\"cognitora.dev/owner\":\"pool.prod\"}}}",
			wanted, "was made by others"},
		{"{\"metadata\":{\"labels\":{\"app.kubernetes.io/managed-by\":\"Helm\",\"cognitora.dev/owner\":\"cluster.prod\"}}}",
			wanted, "was made by others"},
		{"{\"metadata\":{\"labels\":{\"cognitora.dev/cluster\":\"prod\"}}}", wanted,
			"was made by others"},
		{"{\"metadata\":{\"labels\":{\"cognitora.dev/cluster\":\"prod\"}}}", state_wanted, NULL},
		{"{\"metadata\":{\"labels\":{\"cognitora.dev/cluster\":\"test\"}}}", state_wanted,
			"was made by others"},
		{"{\"metadata\":{\"labels\":{\"cognitora.dev/owner\":7},\"ownerReferences\":{}}}", wanted,
			"was made by others"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		struct json_val found, to;
		char who[DESIRED_WHO] = "";
		assert_true(cgn_ok(json_parse(cgn_str_of(cases[i].found), &found, NULL, NULL)));
		assert_true(cgn_ok(json_parse(cgn_str_of(cases[i].wanted), &to, NULL, NULL)));
		bool may = desired_claim(found, to, who);
		if (may != (cases[i].who == NULL) || (!may && strcmp(who, cases[i].who) != 0))
			fail_msg("%zu: %d %s", i, may, who);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_objects_of_others_are_told_apart),
		cmocka_unit_test(resources_stand_for_their_objects),
		cmocka_unit_test(a_resource_that_cannot_be_made_says_why),
		cmocka_unit_test(weights_become_a_document_that_routers_read),
		cmocka_unit_test(a_cascade_becomes_settings_that_routers_read),
		cmocka_unit_test(members_of_another_type_are_left_out),
		cmocka_unit_test(cascades_of_pools_become_settings),
		cmocka_unit_test(a_policy_counts_before_the_cascades_of_pools),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
