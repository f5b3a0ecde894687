/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/apierror/apierror.h"

static void assert_error(const struct apierror *e, const char *expected)
{
	struct cgn_buf b = {0};
	apierror_put(&b, e);
	assert_string_equal(cgn_buf_z(&b), expected);
	cgn_buf_fini(&b);
}

static void errors_have_the_shape_of_openai(void **state)
{
	(void)state;
	assert_error(&(struct apierror){.message = "no \"x\"",
			     .type = apierror_type(404),
			     .param = "model",
			     .code = "model_not_found"},
		"{\"error\":{\"message\":\"no \\\"x\\\"\",\"type\":\"invalid_request_error\",\"param\":\"model\","
		"\"code\":\"model_not_found\"}}");
	assert_error(&(struct apierror){.message = "", .type = apierror_type(500), .status = 500},
		"{\"error\":{\"message\":\"\",\"type\":\"server_error\",\"param\":null,\"code\":500}}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(errors_have_the_shape_of_openai)};
	return cmocka_run_group_tests_name("base_apierror", tests, NULL, NULL);
}
