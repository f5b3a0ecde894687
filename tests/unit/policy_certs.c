/* SPDX-License-Identifier: Apache-2.0 */
/* The certificates of an InferenceCluster: which there are, and when each is made again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/codec/codec.h"
#include "policy/fleet/desired/certs.h"

#define NOW ((int64_t)1700000000)
#define DAY ((int64_t)86400)

static struct certs_plan *plan_of(const char *spec)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct certs_plan *p = malloc(sizeof *p);
	struct json_val cluster;
	struct cgn_err err = {.msg = ""};
	assert_non_null(p);
	cgn_buf_fmt(&text,
		"{\"metadata\":{\"name\":\"prod\",\"namespace\":\"ai\",\"uid\":\"u\"},\"spec\":%s}", spec);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&text), &cluster, NULL, NULL)));
	if (!cgn_ok(certs_plan_read(cluster, p, &err)))
		fail_msg("%s: %s", spec, err.msg);
	return p;
}

static bool has_name(const struct certs_leaf *l, const char *name)
{
	for (size_t i = 0; i < l->n_names; i++)
		if (strcmp(l->names[i], name) == 0)
			return true;
	return false;
}

static const struct certs_leaf *leaf_of(const struct certs_plan *p, const char *component)
{
	for (size_t i = 0; i < p->n; i++)
		if (strcmp(p->leaf[i].component, component) == 0)
			return &p->leaf[i];
	return NULL;
}

static void each_program_has_a_certificate_with_its_roles_and_names(void **state)
{
	struct certs_plan *p = plan_of(
		"{\"clusterName\":\"eu\",\"kvcached\":{\"ramGib\":1},\"security\":{\"dnsNames\":[\"llm.example.org\"]}}");
	(void)state;
	assert_true(p->secured && p->own);
	assert_string_equal(p->authority, "prod-ca");
	assert_string_equal(p->authority_name, "eu cluster CA");
	assert_true(p->life == 90 * DAY && p->authority_life == 3650 * DAY);
	const struct certs_leaf *router = leaf_of(p, "router"), *agent = leaf_of(p, "agent"),
				*store = leaf_of(p, "kvcached");
	assert_string_equal(router->secret, "prod-router-tls");
	assert_true(has_name(router, "prod-router") && has_name(router, "prod-router.ai") &&
		has_name(router, "prod-router.ai.svc") &&
		has_name(router, "prod-router.ai.svc.cluster.local"));
	assert_true(has_name(router, "llm.example.org") && !has_name(agent, "llm.example.org"));
	assert_true(has_name(router, "cognitora://eu/router/prod-router"));
	/* The name of all nodes is not the router's: an agent's certificate does not count as a router's, nor
	 * a router's as an agent's. */
	assert_true(has_name(agent, "prod-agents.ai.svc") && has_name(store, "prod-agents.ai.svc"));
	assert_false(has_name(router, "prod-agents.ai.svc") || has_name(agent, "prod-router"));
	assert_true(has_name(agent, "cognitora://eu/agent/prod-agents") &&
		has_name(store, "cognitora://eu/kvcached/prod-agents"));
	assert_false(has_name(store, "cognitora://eu/agent/prod-agents"));
	assert_true(has_name(leaf_of(p, "metrics"), "cognitora://eu/viewer/prod-metrics"));
	assert_true(has_name(leaf_of(p, "admin"), "cognitora://eu/operator/prod-admin"));
	assert_null(router->names[router->n_names]);
	free(p);
}

static void the_spec_says_which_there_are(void **state)
{
	(void)state;
	struct certs_plan *p = plan_of("{\"security\":{\"mode\":\"insecure\"}}");
	assert_false(p->secured);
	assert_int_equal(p->n, 0);
	free(p);
	p = plan_of(
		"{\"metrics\":{\"enabled\":false},\"security\":{\"existingSecret\":\"mine\",\"certificateLifetime\":\"2h\"}}");
	assert_true(p->secured && !p->own && p->life == 7200);
	assert_string_equal(p->authority, "mine");
	assert_null(leaf_of(p, "metrics"));
	assert_null(leaf_of(p, "kvcached"));
	assert_int_equal(p->n, 3);
	free(p);
	free(plan_of("{\"security\":{\"dnsNames\":7,\"existingSecret\":3,\"certificateLifetime\":{}}}"));
}

static void a_name_that_cannot_stand_in_a_certificate_is_refused(void **state)
{
	struct certs_plan *p = malloc(sizeof *p);
	struct json_val cluster;
	struct cgn_err err = {.msg = ""};
	(void)state;
	assert_non_null(p);
	assert_true(cgn_ok(json_parse(
		CGN_STR("{\"metadata\":{\"name\":\"prod\",\"namespace\":\"ai\"},\"spec\":{\"clusterName\":\"a/b\"}}"),
		&cluster, NULL, NULL)));
	assert_false(cgn_ok(certs_plan_read(cluster, p, &err)));
	assert_non_null(strstr(err.msg, "a/b"));
	free(p);
}

static void a_leaf_is_made_again_when_it_must_be(void **state)
{
	const struct certs_facts good = {.there = true,
		.named = true,
		.ours = true,
		.trusted = true,
		.from = NOW,
		.to = NOW + 90 * DAY};
	const int64_t known = NOW - DAY; /* The authority has been known for long. */
	struct certs_facts f = good;
	(void)state;
	struct certs_judgement j = certs_judge_leaf(&f, known, NOW + DAY);
	assert_int_equal(j.verdict, CERTS_KEEP);
	assert_true(j.look_at == NOW + 60 * DAY); /* Two thirds of its life. */
	assert_int_equal(certs_judge_leaf(&f, known, NOW + 60 * DAY - 1).verdict, CERTS_KEEP);
	assert_int_equal(certs_judge_leaf(&f, known, NOW + 60 * DAY).verdict, CERTS_ISSUE);
	f = (struct certs_facts){.there = false};
	assert_int_equal(certs_judge_leaf(&f, known, NOW).verdict, CERTS_ISSUE);
	f = (struct certs_facts){.there = true, .broken = true};
	assert_int_equal(certs_judge_leaf(&f, known, NOW).verdict, CERTS_ISSUE);
	f = good;
	f.named = false;
	assert_int_equal(certs_judge_leaf(&f, known, NOW + DAY).verdict, CERTS_ISSUE);
	f = good;
	f.revoked = true;
	assert_string_equal(certs_judge_leaf(&f, known, NOW + DAY).why, "it was revoked");
	f = good;
	f.ours = f.trusted = false;
	assert_int_equal(certs_judge_leaf(&f, known, NOW + DAY).verdict, CERTS_ISSUE);
}

static void serial_numbers_are_compared_without_their_spelling(void **state)
{
	static const char *const bad[] = {"", ":", "1", "abc", "0g", "12 34",
		"0102030405060708090a0b0c0d0e0f101112131415"};
	char out[CERTS_SERIAL];
	(void)state;
	assert_true(certs_serial(CGN_STR("00:00:0A:bC"), out));
	assert_string_equal(out, "0abc");
	assert_true(certs_serial(CGN_STR("0102030405060708090a0b0c0d0e0f1011121314"), out));
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(certs_serial(cgn_str_of(bad[i]), out));
	struct certs_plan *p = plan_of("{\"security\":{\"revoked\":[\"0A:BC\",\"77\"]}}");
	assert_true(p->revokes && p->n_revoked == 2);
	assert_true(certs_is_revoked(p, "000abc") && certs_is_revoked(p, "77") && !certs_is_revoked(p, "78"));
	free(p);
	p = plan_of("{\"security\":{\"revoked\":[]}}");
	assert_true(p->revokes && p->n_revoked == 0 && !certs_is_revoked(p, "77"));
	free(p);
	p = plan_of("{}");
	assert_false(p->revokes);
	free(p);
	p = plan_of("{\"security\":{\"mode\":\"insecure\",\"revoked\":[\"77\"]}}");
	assert_false(p->revokes);
	free(p);
}

static void a_new_authority_signs_only_when_every_pod_trusts_it(void **state)
{
	struct certs_facts f = {.there = true,
		.named = true,
		.trusted = true,
		.from = NOW,
		.to = NOW + 90 * DAY};
	(void)state;
	struct certs_judgement j = certs_judge_leaf(&f, NOW + 1000, NOW + 999);
	assert_int_equal(j.verdict, CERTS_KEEP);
	assert_true(j.look_at == NOW + 1000);
	assert_int_equal(certs_judge_leaf(&f, NOW + 1000, NOW + 1000).verdict, CERTS_ISSUE);
	/* Even one whose renewal is due waits, but not one that is over. */
	assert_int_equal(certs_judge_leaf(&f, NOW + 80 * DAY, NOW + 70 * DAY).verdict, CERTS_KEEP);
	assert_true(certs_judge_leaf(&f, NOW + 99 * DAY, NOW + 70 * DAY).look_at == f.to);
	assert_int_equal(certs_judge_leaf(&f, NOW + 99 * DAY, NOW + 90 * DAY).verdict, CERTS_ISSUE);
	const struct certs_period p = certs_period_of(3650 * DAY, 0, 0, NOW);
	assert_true(certs_known_at(p.from, p.to) == NOW + CERTS_OVERLAP);
	assert_true(certs_known_at(NOW - 20, NOW + 200) == NOW + 11);
}

static void an_authority_that_is_there_but_broken_is_never_replaced(void **state)
{
	struct certs_facts f = {.there = true, .broken = true};
	(void)state;
	assert_int_equal(certs_judge_authority(&f, NOW).verdict, CERTS_BROKEN);
	f = (struct certs_facts){.there = false};
	assert_int_equal(certs_judge_authority(&f, NOW).verdict, CERTS_ISSUE);
	f = (struct certs_facts){.there = true, .from = NOW, .to = NOW + 3 * DAY};
	assert_int_equal(certs_judge_authority(&f, NOW + DAY).verdict, CERTS_KEEP);
	assert_int_equal(certs_judge_authority(&f, NOW + 2 * DAY).verdict, CERTS_ISSUE);
	assert_int_equal(certs_judge_authority(&f, NOW + 4 * DAY).verdict, CERTS_ISSUE);
}

static void a_period_begins_earlier_and_ends_with_the_authority(void **state)
{
	(void)state;
	struct certs_period p = certs_period_of(90 * DAY, 0, 0, NOW);
	assert_true(p.from == NOW - CERTS_SKEW && p.to == NOW + 90 * DAY);
	p = certs_period_of(90 * DAY, NOW - 10, NOW + DAY, NOW);
	assert_true(p.from == NOW - 10 && p.to == NOW + DAY);
	p = certs_period_of(60, 0, 0, NOW); /* Not due at once. */
	const struct certs_facts f = {.there = true, .named = true, .ours = true, .from = p.from, .to = p.to};
	assert_int_equal(certs_judge_leaf(&f, 0, NOW + 30).verdict, CERTS_KEEP);
}

static void a_secret_has_the_files_that_programs_read(void **state)
{
	CGN_ON_EXIT(desired_set_fini) struct desired_set set = {.n = 0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {.n = 0};
	const struct certs_texts texts = {CGN_STR("C"), CGN_STR("K"), CGN_STR("B"), CGN_STR("L")};
	struct json_val cluster, secret, data, v;
	(void)state;
	assert_true(cgn_ok(json_parse(
		CGN_STR("{\"metadata\":{\"name\":\"prod\",\"namespace\":\"ai\",\"uid\":\"u\"},\"spec\":{}}"),
		&cluster, NULL, NULL)));
	assert_true(cgn_ok(certs_secret_put(cluster, "prod-router-tls", CERTS_LEAF, &texts, &set, NULL)));
	assert_int_equal(set.n, 1);
	assert_int_equal(set.objects[0].kind, DESIRED_SECRET);
	assert_true(cgn_ok(json_parse(desired_body(&set, &set.objects[0]), &secret, NULL, NULL)));
	assert_true(json_get(secret, "type", &v) && cgn_str_is(v.raw, "\"kubernetes.io/tls\""));
	assert_true(json_get(secret, "data", &data) && json_get(data, "tls.key", &v));
	assert_true(base64_get(&key, (struct cgn_str){v.raw.p + 1, v.raw.n - 2}));
	assert_true(cgn_str_is(cgn_buf_view(&key), "K"));
	assert_true(json_get(data, "tls.crt", &v) && json_get(data, "ca.crt", &v));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_program_has_a_certificate_with_its_roles_and_names),
		cmocka_unit_test(the_spec_says_which_there_are),
		cmocka_unit_test(a_name_that_cannot_stand_in_a_certificate_is_refused),
		cmocka_unit_test(a_leaf_is_made_again_when_it_must_be),
		cmocka_unit_test(serial_numbers_are_compared_without_their_spelling),
		cmocka_unit_test(a_new_authority_signs_only_when_every_pod_trusts_it),
		cmocka_unit_test(an_authority_that_is_there_but_broken_is_never_replaced),
		cmocka_unit_test(a_period_begins_earlier_and_ends_with_the_authority),
		cmocka_unit_test(a_secret_has_the_files_that_programs_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
