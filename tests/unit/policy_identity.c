/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "policy/who/identity/identity.h"

static struct identity_roles *table_of(const char *toml)
{
	struct config *cfg = NULL;
	struct identity_roles *t = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(settings_load("t.toml", cgn_str_of(toml), NULL, NULL, 0, &cfg, &err)) ||
		!cgn_ok(identity_roles_new(cfg, &t, &err)))
		fail_msg("%s", err.msg);
	config_free(&cfg);
	return t;
}

static void assert_no_table(const char *toml, const char *why)
{
	struct config *cfg = NULL;
	struct identity_roles *t = NULL;
	struct cgn_err err = {0};
	bool good = cgn_ok(settings_load("t.toml", cgn_str_of(toml), NULL, NULL, 0, &cfg, &err)) &&
		cgn_ok(identity_roles_new(cfg, &t, &err));
	config_free(&cfg);
	assert_false(good);
	if (strstr(err.msg, why) == NULL)
		fail_msg("%s", err.msg);
}

static struct principal holder_of(const struct identity_roles *t, const char *uris)
{
	struct principal p = {0};
	identity_of_certificate(t, "c", CGN_STR("cn"), cgn_str_of(uris), &p);
	return p;
}

static const struct cgn_str any = {0};

static void test_uris_name_cluster_role_and_node(void **state)
{
	(void)state;
	struct identity_uri u;
	struct cgn_buf b = {0};
	assert_true(identity_uri_parse(CGN_STR("cognitora://prod-1/agent/gpu-07.rack_3"), &u));
	assert_true(cgn_str_is(u.cluster, "prod-1") && cgn_str_is(u.role, "agent") &&
		cgn_str_is(u.node, "gpu-07.rack_3"));
	identity_uri_put(&u, &b);
	assert_string_equal(cgn_buf_z(&b), "cognitora://prod-1/agent/gpu-07.rack_3");
	cgn_buf_fini(&b);
	static const char *const bad[] = {"", "cognitora://", "cognitora://c/agent", "cognitora://c/agent/",
		"cognitora://c//n", "cognitora:///agent/n", "cognitora://c/agent/n/",
		"cognitora://c/agent/n/x", "Cognitora://c/agent/n", "spiffe://c/agent/n",
		"cognitora://c/agent/n%2f", "cognitora://c/agent/n x", "cognitora://c/agent/n?x",
		"cognitora://c@d/agent/n"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		if (identity_uri_parse(cgn_str_of(bad[i]), &u))
			fail_msg("%s", bad[i]);
	char longest[200];
	memset(longest, 'a', sizeof longest);
	assert_true(identity_uri_part_ok((struct cgn_str){longest, 128}));
	assert_false(identity_uri_part_ok((struct cgn_str){longest, 129}));
	assert_false(identity_uri_parse((struct cgn_str){"cognitora://c/a/nX", 16}, &u));
}

static void test_certificates_hold_the_roles_of_this_cluster(void **state)
{
	(void)state;
	struct identity_roles *t = table_of("[roles.\"builder\"]\nallow = [\"model.change\"]\n");
	struct principal p =
		holder_of(t, "cognitora://c/agent/n1 cognitora://c/kvcached/n1 cognitora://c/unheard/n1");
	assert_true(p.kind == IDENTITY_CERT && cgn_str_is(p.name, "n1"));
	assert_true(p.roles == (IDENTITY_BIT(AGENT) | IDENTITY_BIT(KVCACHED)));
	assert_true(holder_of(t, "cognitora://other/operator/n1").roles == 0);
	assert_true(holder_of(t, "cognitora://c/agent/n1 cognitora://c/operator/n2").roles == 0);
	assert_true(holder_of(t, "https://example.org").roles == 0);
	assert_true(cgn_str_is(holder_of(t, "").name, "cn"));
	p = holder_of(t, "cognitora://c/builder/ann");
	assert_true(authorize(t, &p, ACTION_MODEL_CHANGE, CGN_STR("m")));
	assert_false(authorize(t, &p, ACTION_POLICY_SET, any));
	identity_roles_unref(&t);
}

static void test_certificates_of_other_clusters_name_their_role(void **state)
{
	(void)state;
	static const char *const routers[] = {"cognitora://virginia/router/r1",
		"https://example.org cognitora://c/router/r1",
		"cognitora://v/agent/n1 cognitora://v/router/n1",
		"cognitora://v/router/n1 cognitora://v/unheard/n1"};
	static const char *const others[] = {"", "https://example.org", "cognitora://v/agent/router",
		"cognitora://router/agent/n", "cognitora://v/router1/n", "cognitora://v/router/",
		"cognitora://v/operator/n https://x/router/n",
		"cognitora://v/router/n1 cognitora://v/agent/n2",
		"cognitora://v/agent/n cognitora://w/router/n",
		"cognitora://v/router/n cognitora://w/router/n"};
	for (size_t i = 0; i < CGN_COUNT(routers); i++)
		if (!identity_uris_name(cgn_str_of(routers[i]), "router"))
			fail_msg("%s", routers[i]);
	for (size_t i = 0; i < CGN_COUNT(others); i++)
		if (identity_uris_name(cgn_str_of(others[i]), "router"))
			fail_msg("%s", others[i]);
}

static void test_roles_do_their_own_work_only(void **state)
{
	(void)state;
	struct identity_roles *t = table_of("");
	struct principal agent = holder_of(t, "cognitora://c/agent/n1"),
			 router = holder_of(t, "cognitora://c/router/r"),
			 operator= holder_of(t, "cognitora://c/operator/ann"),
			 viewer = holder_of(t, "cognitora://c/viewer/bob"),
			 metrics = holder_of(t, "cognitora://c/metrics/m"),
			 store = holder_of(t, "cognitora://c/kvcached/n1");
	assert_true(authorize(t, &agent, ACTION_NODE_ANNOUNCE, CGN_STR("n1")));
	assert_false(authorize(t, &agent, ACTION_NODE_ANNOUNCE, CGN_STR("n2")));
	assert_true(authorize(t, &agent, ACTION_NODE_ANNOUNCE, any));
	assert_true(authorize(t, &router, ACTION_NODE_GENERATE, any));
	const struct principal *others[] = {&agent, &operator, & viewer, &metrics, &store};
	for (size_t i = 0; i < CGN_COUNT(others); i++)
		assert_false(authorize(t, others[i], ACTION_NODE_GENERATE, any));
	static const enum identity_action orders[] = {ACTION_NODE_CORDON, ACTION_NODE_DRAIN,
		ACTION_NODE_INVITE, ACTION_POLICY_SET, ACTION_MODEL_CHANGE, ACTION_KV_ADMIN,
		ACTION_ADMIN_CHANGE};
	const struct principal *not_operators[] = {&agent, &router, &viewer, &metrics, &store};
	for (size_t i = 0; i < CGN_COUNT(orders); i++) {
		assert_true(authorize(t, &operator, orders[i], any));
		for (size_t j = 0; j < CGN_COUNT(not_operators); j++)
			assert_false(authorize(t, not_operators[j], orders[i], any));
	}
	assert_false(authorize(t, &operator, ACTION_NODE_ANNOUNCE, CGN_STR("ann")));
	assert_true(authorize(t, &viewer, ACTION_STATUS_READ, any) &&
		!authorize(t, &viewer, ACTION_KV_READ, any));
	assert_true(authorize(t, &metrics, ACTION_METRICS_READ, any));
	identity_roles_unref(&t);
}

static void test_who_shows_nothing_must_be_local(void **state)
{
	(void)state;
	struct identity_roles *t = table_of(""), *open = table_of("security.insecure = true"),
			      *old = table_of("security.legacy_roles = true");
	struct principal here = {.local = true}, there = {0}, bare = holder_of(t, ""),
			 key = {.kind = IDENTITY_KEY, .local = true};
	assert_true(authorize(t, &here, ACTION_NODE_CORDON, any));
	assert_false(authorize(t, &there, ACTION_STATUS_READ, any));
	assert_true(authorize(open, &there, ACTION_NODE_CORDON, any));
	assert_false(authorize(t, &bare, ACTION_STATUS_READ, any));
	assert_false(authorize(open, &bare, ACTION_STATUS_READ, any));
	assert_true(authorize(old, &bare, ACTION_NODE_GENERATE, any));
	struct principal foreign = holder_of(t, "cognitora://other/operator/n1");
	assert_false(authorize(old, &foreign, ACTION_STATUS_READ, any));
	assert_false(authorize(t, &key, ACTION_STATUS_READ, any)); /* A shown key counts, not the address. */
	identity_roles_unref(&t);
	identity_roles_unref(&open);
	identity_roles_unref(&old);
}

static void test_permissions_name_objects(void **state)
{
	(void)state;
	struct identity_roles *t = table_of(
		"[roles.\"some\"]\nallow = [\"model.use:llama-*\", \"node.c*\"]\n[roles.\"all\"]\nallow=[\"*\"]\n");
	uint64_t bit;
	assert_true(identity_role_find(t, CGN_STR("some"), &bit));
	struct principal p = {.kind = IDENTITY_KEY, .name = CGN_STR("k"), .roles = bit};
	assert_true(authorize(t, &p, ACTION_MODEL_USE, CGN_STR("llama-3")));
	assert_false(authorize(t, &p, ACTION_MODEL_USE, CGN_STR("qwen")));
	assert_true(authorize(t, &p, ACTION_MODEL_USE, any));
	assert_true(authorize(t, &p, ACTION_NODE_CORDON, CGN_STR("x")) &&
		!authorize(t, &p, ACTION_NODE_DRAIN, any));
	struct cgn_buf why = {0};
	identity_refusal(t, &p, ACTION_MODEL_USE, CGN_STR("qwen"), &why);
	assert_string_equal(cgn_buf_z(&why), "key k (some) lacks the permission model.use:qwen");
	cgn_buf_fini(&why);
	assert_true(identity_role_find(t, CGN_STR("all"), &bit));
	p.roles = bit;
	assert_true(authorize(t, &p, ACTION_KV_ADMIN, CGN_STR("x")));
	assert_false(authorize(t, &p, ACTION_NODE_ANNOUNCE, CGN_STR("other")));
	identity_roles_unref(&t);
	assert_no_table("[roles.\"x\"]\nallow = [\"node.fly\"]\n", "\"node.fly\"");
	assert_no_table("[roles.\"x\"]\nallow = [\"model.use:\"]\n", "after the colon");
	assert_no_table("[roles.\"agent\"]\nallow = [\"*\"]\n", "exists without configuration");
	assert_no_table("[roles.\"a b\"]\nallow = [\"*\"]\n", "a role's name");
}

static void test_nobody_gives_what_they_do_not_hold(void **state)
{
	(void)state;
	static const struct {
		const char *holds, *gives, *missing; /* |missing| NULL: may. */
	} cases[] = {
		{"inviter", "agent", NULL},
		{"inviter", "kvcached", NULL},
		{"inviter", "operator", "node.cordon"},
		{"inviter", "router", "node.generate"},
		{"inviter", "viewer", "status.read"},
		{"inviter", "inviter", NULL},
		{"operator", "operator", NULL},
		{"operator", "viewer", NULL},
		{"operator", "metrics", NULL},
		{"operator", "user", NULL},
		{"operator", "router", "node.generate"},
		{"operator", "east", NULL},
		{"east", "east-1", NULL},
		{"east", "west", "node.cordon:west-*"},
		{"east", "anywhere", "node.cordon"},
		{"east-1", "east", "node.cordon:east-*"},
		{"odd", "east", "node.cordon:east-*"},
		{"all", "operator", NULL},
		{"all", "anywhere", NULL},
		{"all", "router", NULL},
		{"star", "anywhere", NULL},
		{"star", "west", NULL},
	};
	struct identity_roles *t = table_of("[roles.\"inviter\"]\nallow = [\"node.invite\"]\n"
					    "[roles.\"east\"]\nallow = [\"node.cordon:east-*\"]\n"
					    "[roles.\"east-1\"]\nallow = [\"node.cordon:east-1\"]\n"
					    "[roles.\"west\"]\nallow = [\"node.cordon:west-*\"]\n"
					    "[roles.\"anywhere\"]\nallow = [\"node.cordon\"]\n"
					    "[roles.\"odd\"]\nallow = [\"node.cordon:[e]*\"]\n"
					    "[roles.\"star\"]\nallow = [\"node.cordon:*\"]\n"
					    "[roles.\"all\"]\nallow = [\"*\"]\n");
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		struct principal p = {.kind = IDENTITY_CERT, .name = CGN_STR("n")};
		struct cgn_buf missing = {0};
		uint64_t bit = 0;
		assert_true(identity_role_find(t, cgn_str_of(cases[i].holds), &p.roles));
		assert_true(identity_role_find(t, cgn_str_of(cases[i].gives), &bit));
		bool may = identity_may_give(t, &p, bit, &missing);
		if (may != (cases[i].missing == NULL))
			fail_msg("%s gives %s: %s", cases[i].holds, cases[i].gives, cgn_buf_z(&missing));
		if (!may)
			assert_string_equal(cgn_buf_z(&missing), cases[i].missing);
		p = (struct principal){.local = true}; /* A caller of this machine may do everything. */
		assert_true(identity_may_give(t, &p, bit, &missing));
		p.local = false;
		assert_int_equal(identity_may_give(t, &p, bit, &missing),
			strcmp(cases[i].gives, "agent") == 0 || strcmp(cases[i].gives, "kvcached") == 0);
		cgn_buf_fini(&missing);
	}
	identity_roles_unref(&t);
}

/* The table of roles.def, a role for each action, and one for each action with a pattern. */
static struct identity_roles *table_of_actions(void)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf toml = {0};
	cgn_buf_putz(&toml, "[roles.\"all\"]\nallow = [\"*\"]\n");
	for (int a = 0; a < IDENTITY_ACTIONS; a++) {
		const char *action = identity_action_text((enum identity_action)a);
		cgn_buf_fmt(&toml, "[roles.\"do-%d\"]\nallow = [\"%s\"]\n", a, action);
		cgn_buf_fmt(&toml, "[roles.\"east-%d\"]\nallow = [\"%s:east-*\"]\n", a, action);
	}
	return table_of(cgn_buf_z(&toml));
}

/* Find an action and an object that a holder of |given| may and a holder of |giver| may not. */
static bool right_is_new(const struct identity_roles *t, uint64_t giver, uint64_t given, char out[100])
{
	static const struct cgn_str objects[] = {{NULL, 0}, {"east-1", 6}, {"west-1", 6}, {"n", 1}, {"", 0}};
	const struct principal from = {.kind = IDENTITY_CERT, .name = CGN_STR("east-1"), .roles = giver},
			       to = {.kind = IDENTITY_CERT, .name = CGN_STR("east-1"), .roles = given};
	for (int a = 0; a < IDENTITY_ACTIONS; a++)
		for (size_t o = 0; o < CGN_COUNT(objects); o++)
			if (authorize(t, &to, (enum identity_action)a, objects[o]) &&
				!authorize(t, &from, (enum identity_action)a, objects[o])) {
				(void)snprintf(out, 100, "%s:%.*s",
					identity_action_text((enum identity_action)a),
					CGN_STR_ARG(objects[o]));
				return true;
			}
	return false;
}

/* Each pair of roles of the tables, so that a new action or role is walked too: a role that is given has no right that
 * its giver lacks. The exceptions are the roles of machines that serve, which node.invite itself covers. */
static void test_no_pair_of_roles_makes_a_right(void **state)
{
	(void)state;
	struct identity_roles *t = table_of_actions();
	const uint64_t serve = IDENTITY_BIT(AGENT) | IDENTITY_BIT(KVCACHED);
	size_t given = 0, refused = 0;
	for (size_t g = 0; identity_role_name(t, g) != NULL; g++)
		for (size_t r = 0; identity_role_name(t, r) != NULL; r++) {
			const struct principal p = {.kind = IDENTITY_CERT,
				.name = CGN_STR("east-1"),
				.roles = UINT64_C(1) << g};
			struct cgn_buf missing = {0};
			char lacks[100] = "";
			bool may = identity_may_give(t, &p, UINT64_C(1) << r, &missing);
			bool is_new = right_is_new(t, p.roles, UINT64_C(1) << r, lacks);
			bool always = g == r || strcmp(identity_role_name(t, g), "all") == 0;
			if ((may && is_new && (serve >> r & 1) == 0) || (!may && (always || missing.n == 0)))
				fail_msg("%s gives %s: %s", identity_role_name(t, g),
					identity_role_name(t, r), lacks);
			given += may;
			refused += !may;
			cgn_buf_fini(&missing);
		}
	assert_true(given > IDENTITY_ACTIONS && refused > given);
	identity_roles_unref(&t);
}

static void test_refusals_say_what_to_do(void **state)
{
	(void)state;
	struct identity_roles *t = table_of("");
	struct principal bare = holder_of(t, ""), nobody = {0};
	struct cgn_buf why = {0};
	identity_refusal(t, &bare, ACTION_NODE_GENERATE, any, &why);
	assert_non_null(strstr(cgn_buf_z(&why),
		"certificate cn (no role) lacks the permission node.generate; it names no role in this cluster"));
	why.n = 0;
	identity_refusal(t, &nobody, ACTION_STATUS_READ, any, &why);
	assert_non_null(strstr(cgn_buf_z(&why), "none was shown"));
	cgn_buf_fini(&why);
	identity_roles_unref(&t);
}

static void test_addresses_of_this_machine(void **state)
{
	(void)state;
	static const char *const here[] = {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix",
		"unix:/x", "[::ffff:127.0.0.1]:1"};
	static const char *const there[] = {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "localhost.example:1",
		"128.0.0.1:1", "[::12]:1", "", "host:1"};
	for (size_t i = 0; i < CGN_COUNT(here); i++)
		assert_true(identity_is_local(cgn_str_of(here[i])));
	for (size_t i = 0; i < CGN_COUNT(there); i++)
		assert_false(identity_is_local(cgn_str_of(there[i])));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_uris_name_cluster_role_and_node),
		cmocka_unit_test(test_certificates_hold_the_roles_of_this_cluster),
		cmocka_unit_test(test_certificates_of_other_clusters_name_their_role),
		cmocka_unit_test(test_roles_do_their_own_work_only),
		cmocka_unit_test(test_who_shows_nothing_must_be_local),
		cmocka_unit_test(test_permissions_name_objects),
		cmocka_unit_test(test_nobody_gives_what_they_do_not_hold),
		cmocka_unit_test(test_no_pair_of_roles_makes_a_right),
		cmocka_unit_test(test_refusals_say_what_to_do),
		cmocka_unit_test(test_addresses_of_this_machine),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
