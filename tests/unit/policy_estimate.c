/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/node/engine/estimate.h"

static void the_steadier_figure_is_used(void **state)
{
	(void)state;
	struct estimate e = {0};
	/* An event is a token, whose length varies. */
	for (unsigned i = 0; i < 64; i++)
		estimate_learn(&e, &(struct estimate_seen){50, 100 + 300 * (i % 2)}, 50);
	assert_int_equal(estimate_tokens(&e, &(struct estimate_seen){77, 9000}), 77);
	/* Events have any number of tokens, of four bytes each. */
	e = (struct estimate){0};
	for (unsigned i = 0; i < 64; i++)
		estimate_learn(&e, &(struct estimate_seen){1 + i % 7, 4000}, 1000);
	assert_int_equal(estimate_tokens(&e, &(struct estimate_seen){3, 8000}), 2000);
	/* A document has no events. */
	assert_int_equal(estimate_tokens(&e, &(struct estimate_seen){0, 400}), 100);
	/* Nothing is learned from nothing. */
	struct estimate same = e;
	estimate_learn(&e, &(struct estimate_seen){0, 0}, 7);
	estimate_learn(&e, &(struct estimate_seen){5, 5}, 0);
	assert_memory_equal(&e, &same, sizeof e);
	assert_int_equal(estimate_tokens(&e, &(struct estimate_seen){0, 0}), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_steadier_figure_is_used),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
