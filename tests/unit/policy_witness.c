/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that no other node has judged: which of them count against the node. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/node/breaker/witness.h"

enum { A = 101, B = 102 }; /* nodes */
enum { P = 7, Q = 8 };     /* sources */

static struct witness_book book;
static cgn_nsec now;
static unsigned most;

static int book_clear(void **state)
{
	(void)state;
	book = (struct witness_book){.rows = {{0}}};
	now = 1000 * CGN_SEC;
	most = UINT_MAX;
	return 0;
}

static bool node_fails(uint64_t source, uint64_t request, uint64_t node)
{
	return witness_failed(&book, &(struct witness_failure){source, request, node, now, most});
}

static void test_each_request_counts_once(void **state)
{
	(void)state;
	for (uint64_t request = 1; request <= 2 * WITNESS_REQUESTS; request++) {
		assert_true(node_fails(P, request, A));
		assert_false(node_fails(P, request, A));
	}
	assert_false(node_fails(P, 2 * WITNESS_REQUESTS - 1, A));
	assert_true(node_fails(P, 1, A)); /* This failed long ago. */
	assert_true(node_fails(Q, 1, A)); /* Another source is another witness. */
}

static void test_a_source_that_fails_everywhere_counts_nowhere(void **state)
{
	(void)state;
	assert_true(node_fails(P, 1, A));
	for (uint64_t request = 2; request < 20; request++) {
		assert_false(node_fails(P, request, B));
		assert_false(node_fails(P, request + 100, A));
	}
	assert_true(node_fails(Q, 2, A));
	assert_true(node_fails(Q, 3, A));
}

static void test_a_source_counts_so_often_until_it_is_answered(void **state)
{
	(void)state;
	most = 2;
	for (int turn = 0; turn < 2; turn++) {
		assert_true(node_fails(P, 1, A));
		assert_true(node_fails(P, 2, A));
		assert_false(node_fails(P, 3, A));
		assert_true(node_fails(Q, 3, A));
		witness_answered(&book, P);
		witness_answered(&book, Q);
	}
}

static void test_an_answer_clears_a_source(void **state)
{
	(void)state;
	assert_true(node_fails(P, 1, A));
	assert_false(node_fails(P, 1, B));
	assert_true(node_fails(Q, 1, A));
	witness_answered(&book, P);
	assert_true(node_fails(P, 1, B));
	assert_false(node_fails(Q, 1, A));
	witness_answered(&book, Q);
	witness_answered(&book, Q);
	assert_true(node_fails(Q, 1, A));
}

static void test_old_failures_are_forgotten(void **state)
{
	(void)state;
	assert_true(node_fails(P, 1, A));
	assert_false(node_fails(P, 1, B));
	now += WITNESS_TIME - 1;
	assert_false(node_fails(P, 2, B));
	now += WITNESS_TIME;
	assert_true(node_fails(P, 2, B));
}

static void test_the_source_that_failed_longest_ago_makes_room(void **state)
{
	(void)state;
	for (uint64_t source = 1; source <= WITNESS_SOURCES; source++, now++)
		assert_true(node_fails(source, 1, A));
	assert_false(node_fails(1, 1, A)); /* Now 2 is the oldest. */
	assert_true(node_fails(WITNESS_SOURCES + 1, 1, A));
	assert_false(node_fails(1, 1, A));
	assert_false(node_fails(3, 1, A));
	assert_true(node_fails(2, 1, A));
}

static void test_bits_tell_who_is_remembered(void **state)
{
	(void)state;
	assert_int_equal(witness_bits(&book), 0);
	assert_true(node_fails(P, 1, A));
	assert_true(node_fails(Q, 1, A));
	assert_int_equal(witness_bits(&book), witness_bit(P) | witness_bit(Q));
	witness_answered(&book, P);
	assert_int_equal(witness_bits(&book), witness_bit(Q));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_each_request_counts_once, book_clear),
		cmocka_unit_test_setup(test_a_source_that_fails_everywhere_counts_nowhere, book_clear),
		cmocka_unit_test_setup(test_a_source_counts_so_often_until_it_is_answered, book_clear),
		cmocka_unit_test_setup(test_an_answer_clears_a_source, book_clear),
		cmocka_unit_test_setup(test_old_failures_are_forgotten, book_clear),
		cmocka_unit_test_setup(test_the_source_that_failed_longest_ago_makes_room, book_clear),
		cmocka_unit_test_setup(test_bits_tell_who_is_remembered, book_clear),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
