/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "policy/fleet/autoscale/order.h"

static const char *const nodes[] = {"gpu-3", "gpu-4"};

static struct autoscale_order order_down(void)
{
	return (struct autoscale_order){.id = "17-1",
		.cluster = "west",
		.model = "a \"b\"",
		.role = "decode",
		.have = 4,
		.replicas = 2,
		.nodes = nodes,
		.n_nodes = 2,
		.why = "little load",
		.at_unix_ms = 1234};
}

static void an_order_is_a_json_object(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	const struct autoscale_order o = order_down();
	autoscale_order_json(&o, &b);
	assert_string_equal(cgn_buf_z(&b),
		"{\"id\":\"17-1\",\"cluster\":\"west\",\"model\":\"a \\\"b\\\"\",\"role\":\"decode\",\"action\":\"down\",\"have\":4,\"replicas\":2,"
		"\"nodes\":[\"gpu-3\",\"gpu-4\"],\"why\":\"little load\",\"at_unix_ms\":1234}");
	cgn_buf_fini(&b);
}

static void an_order_is_an_environment(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	const char *env[AUTOSCALE_ORDER_VAR + 1];
	struct autoscale_order o = order_down();
	assert_true(autoscale_order_env(&o, &b, env));
	static const char *const want[] = {"CGN_SCALE_ID=17-1", "CGN_SCALE_CLUSTER=west",
		"CGN_SCALE_MODEL=a \"b\"", "CGN_SCALE_ROLE=decode", "CGN_SCALE_ACTION=down",
		"CGN_SCALE_HAVE=4", "CGN_SCALE_REPLICAS=2", "CGN_SCALE_NODES=gpu-3 gpu-4",
		"CGN_SCALE_WHY=little load", "CGN_SCALE_AT_UNIX_MS=1234"};
	for (size_t i = 0; i < CGN_COUNT(want); i++)
		assert_string_equal(env[i], want[i]);
	assert_null(env[CGN_COUNT(want)]);
	cgn_buf_fini(&b);
	b = (struct cgn_buf){.limit = 40};
	assert_false(autoscale_order_env(&o, &b, env));
	cgn_buf_fini(&b);
}

static void exit_is(struct autoscale_exit e, enum autoscale_outcome outcome, const char *says)
{
	char why[200];
	assert_int_equal(autoscale_exit_read(&e, why, sizeof why), outcome);
	assert_string_equal(why, says);
}

static void ends_of_a_program_are_explained(void **state)
{
	(void)state;
	exit_is((struct autoscale_exit){.code = 0}, AUTOSCALE_DONE, "the command has ended well");
	exit_is((struct autoscale_exit){.code = 0, .said = CGN_STR("2 machines")}, AUTOSCALE_DONE,
		"the command has ended well: 2 machines");
	exit_is((struct autoscale_exit){.code = 3, .said = CGN_STR("quota\x1b[2J")}, AUTOSCALE_AGAIN,
		"the command ended with status 3: quota\\x1b[2J");
	exit_is((struct autoscale_exit){.code = 75}, AUTOSCALE_AGAIN,
		"the command ended with status 75 (EX_TEMPFAIL: try again)");
	exit_is((struct autoscale_exit){.code = 78}, AUTOSCALE_REFUSED,
		"the command ended with status 78 (EX_CONFIG: its configuration is wrong)");
	exit_is((struct autoscale_exit){.code = 127}, AUTOSCALE_AGAIN,
		"the command ended with status 127 (a command was not found)");
	exit_is((struct autoscale_exit){.code = -1, .signal = 9}, AUTOSCALE_AGAIN,
		"signal 9 ended the command");
	exit_is((struct autoscale_exit){.code = 78, .late = true}, AUTOSCALE_AGAIN,
		"the command took longer than router.autoscaler.target_timeout and was ended");
	exit_is((struct autoscale_exit){.code = -1, .exec_errno = ENOEXEC}, AUTOSCALE_REFUSED,
		"the command cannot be executed: Exec format error");
}

static void status_is(int status, enum autoscale_outcome outcome)
{
	char why[64];
	assert_int_equal(autoscale_status_read(status, CGN_STR(""), why, sizeof why), outcome);
}

static void a_webhooks_answers_are_done_or_not(void **state)
{
	(void)state;
	char why[64];
	for (int s = 200; s < 300; s += 33)
		status_is(s, AUTOSCALE_DONE);
	status_is(500, AUTOSCALE_AGAIN);
	status_is(503, AUTOSCALE_AGAIN);
	status_is(429, AUTOSCALE_AGAIN);
	status_is(408, AUTOSCALE_AGAIN);
	status_is(302, AUTOSCALE_REFUSED);
	status_is(401, AUTOSCALE_REFUSED);
	(void)autoscale_status_read(500, CGN_STR("no\nquota"), why, sizeof why);
	assert_string_equal(why, "the webhook answered 500: no\\x0aquota");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_order_is_a_json_object),
		cmocka_unit_test(an_order_is_an_environment),
		cmocka_unit_test(ends_of_a_program_are_explained),
		cmocka_unit_test(a_webhooks_answers_are_done_or_not),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
