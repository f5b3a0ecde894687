/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that no other node has judged: which of them count against the node. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/node/breaker/witness.h"

enum { A = 101, B = 102, C = 103 }; /* nodes */
enum { P = 7, Q = 8 };              /* sources */

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

static void node_answers(uint64_t source, uint64_t node, int times)
{
	for (int i = 0; i < times; i++)
		witness_answered(&book, source, node, now);
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

static void test_one_source_counts_so_often(void **state)
{
	(void)state;
	most = 2;
	assert_true(node_fails(P, 1, A));
	assert_true(node_fails(P, 2, A));
	assert_false(node_fails(P, 3, A));
	assert_true(node_fails(Q, 3, A)); /* Another source is another witness. */
	node_answers(P, A, 1);
	assert_false(node_fails(P, 4, A));
	node_answers(P, B, 1); /* Now B answers what A fails. */
	for (uint64_t request = 5; request < 8; request++)
		assert_true(node_fails(P, request, A));
	assert_false(node_fails(P, 7, A));
	assert_false(node_fails(P, 8, A)); /* B answered once, and A failed 8. */
	node_answers(P, B, 1);
	assert_true(node_fails(P, 9, A));
	assert_false(node_fails(P, 10, B)); /* B answered more than it failed. */
	assert_false(node_fails(P, 11, A)); /* A answers others of them, too. */
}

static void test_bad_requests_between_good_ones_count_nowhere(void **state)
{
	(void)state;
	most = 4;
	const uint64_t nodes[] = {A, B, C};
	unsigned counted = 0;
	for (uint64_t i = 0; i < 300; i++) {
		counted += node_fails(P, i + 1, nodes[i % 3]);
		node_answers(P, nodes[i * 7 / 2 % 3], 1);
		node_answers(P, 0, 1);
	}
	assert_int_equal(counted, 1);
	/* A begins to fail everything, and the others do no longer. */
	for (uint64_t i = 1000; i < 1100; i++) {
		counted += node_fails(P, i, A);
		node_answers(P, B, 1);
		node_answers(P, C, 1);
	}
	assert_in_range(counted, 5, 80);
}

static void test_a_node_that_fails_is_found_among_many(void **state)
{
	(void)state;
	most = 1;
	for (uint64_t node = 1; node <= 20; node++) {
		assert_int_equal(node_fails(P, node, node), node == 1);
		node_answers(P, node, 9);
	}
	/* Every node failed once, and was answered by all. */
	assert_false(node_fails(P, 50, 20));
	unsigned counted = 0;
	for (uint64_t request = 100; request < 120; request++)
		counted += node_fails(P, request, 30);
	assert_int_equal(counted, 19);
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
	now += WITNESS_TIME;
	node_answers(P, B, 1);
	assert_int_equal(witness_bits(&book), 0);
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
	node_answers(P, A, 1);
	assert_int_equal(witness_bits(&book), witness_bit(P) | witness_bit(Q));
	now += WITNESS_TIME;
	node_answers(P, A, 1);
	assert_int_equal(witness_bits(&book), witness_bit(Q));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_each_request_counts_once, book_clear),
		cmocka_unit_test_setup(test_a_source_that_fails_everywhere_counts_nowhere, book_clear),
		cmocka_unit_test_setup(test_one_source_counts_so_often, book_clear),
		cmocka_unit_test_setup(test_bad_requests_between_good_ones_count_nowhere, book_clear),
		cmocka_unit_test_setup(test_a_node_that_fails_is_found_among_many, book_clear),
		cmocka_unit_test_setup(test_old_failures_are_forgotten, book_clear),
		cmocka_unit_test_setup(test_the_source_that_failed_longest_ago_makes_room, book_clear),
		cmocka_unit_test_setup(test_bits_tell_who_is_remembered, book_clear),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
