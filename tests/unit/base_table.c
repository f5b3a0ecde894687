/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "base/table/table.h"

#define KEYS 512U

struct row {
	uint32_t before; /* So that keys do not begin at a row's start. */
	uint64_t key;
	bool in;
};

static size_t count_of(const struct table *t, uint64_t hash, uint32_t number)
{
	size_t n = 0;
	table_each (at, t, hash)
		n += at.number == number;
	return n;
}

static void an_empty_table_finds_nothing(void **state)
{
	(void)state;
	struct table t = {0};
	assert_int_equal(count_of(&t, 7, 0), 0);
	assert_int_equal(table_find(&t, 7, &(uint64_t){7}, sizeof(uint64_t)), TABLE_NONE);
	assert_int_equal(table_bytes(&t), 0);
	table_clear(&t);
	table_fini(&t);
	assert_true(table_reserve(&t, 0));
	assert_int_equal(count_of(&t, 7, 0), 0);
	table_fini(&t);
}

/* Many keys share a home and some a hash, so that runs wrap around the end and numbers move back. */
static void random_changes_agree_with_a_plain_array(uint64_t (*hash_of)(uint64_t key))
{
	static struct row rows[KEYS];
	struct table t = {0};
	uint64_t rng = 42;
	size_t n = 0;
	for (uint32_t i = 0; i < KEYS; i++)
		rows[i] = (struct row){.key = i};
	for (unsigned step = 0; step < 40000; step++) {
		uint32_t i = (uint32_t)(mix_splitmix(&rng) % KEYS);
		uint64_t hash = hash_of(rows[i].key);
		bool fill = step / 4000 % 2 == 0;
		if (rows[i].in && (!fill || step % 4 == 0)) {
			table_drop(&t, hash, i);
			rows[i].in = false;
			n--;
		} else if (!rows[i].in && (fill || step % 4 == 0)) {
			table_put(&t, hash, i);
			rows[i].in = true;
			n++;
		}
		assert_int_equal(t.n, n);
		uint32_t look = (uint32_t)(mix_splitmix(&rng) % KEYS);
		assert_int_equal(count_of(&t, hash_of(rows[look].key), look), rows[look].in);
		for (uint32_t k = 0; step % 500 == 0 && k < KEYS; k++)
			assert_int_equal(count_of(&t, hash_of(rows[k].key), k), rows[k].in);
	}
	table_fini(&t);
}

static uint64_t hash_itself(uint64_t key)
{
	return key;
}

static uint64_t hash_high_bits(uint64_t key)
{
	return key << 48;
}

static uint64_t hash_shared(uint64_t key)
{
	return key % 9;
}

static void changes_agree_with_a_plain_array(void **state)
{
	(void)state;
	random_changes_agree_with_a_plain_array(hash_itself);
	random_changes_agree_with_a_plain_array(hash_high_bits);
	random_changes_agree_with_a_plain_array(hash_shared);
}

static void keys_are_found_in_their_rows(void **state)
{
	(void)state;
	struct row rows[100] = {0};
	struct table t = {0};
	for (uint32_t i = 0; i < CGN_COUNT(rows); i++) {
		rows[i].key = mix64(i);
		table_put(&t, rows[i].key, i);
	}
	for (uint32_t i = 0; i < CGN_COUNT(rows); i++)
		assert_int_equal(table_find(&t, rows[i].key, &rows->key, sizeof *rows), i);
	assert_int_equal(table_find(&t, mix64(100), &rows->key, sizeof *rows), TABLE_NONE);
	table_fini(&t);
}

static void a_number_is_replaced(void **state)
{
	(void)state;
	struct table t = {0};
	for (uint32_t i = 0; i < 20; i++)
		table_put(&t, i % 3, i);
	table_replace(&t, 1, 4, 99);
	assert_int_equal(count_of(&t, 1, 4), 0);
	assert_int_equal(count_of(&t, 1, 99), 1);
	assert_int_equal(t.n, 20);
	table_drop(&t, 1, 99);
	assert_int_equal(count_of(&t, 1, 99), 0);
	table_fini(&t);
}

static void a_number_may_be_there_twice(void **state)
{
	(void)state;
	struct table t = {0};
	table_put(&t, 3, 8);
	table_put(&t, 3, 8);
	assert_int_equal(count_of(&t, 3, 8), 2);
	table_drop(&t, 3, 8);
	assert_int_equal(count_of(&t, 3, 8), 1);
	table_drop(&t, 3, 8);
	assert_int_equal(t.n, 0);
	table_fini(&t);
}

static void memory_is_what_was_reserved(void **state)
{
	(void)state;
	struct table t = {0};
	assert_true(table_reserve(&t, 3000));
	size_t bytes = table_bytes(&t);
	assert_int_equal(bytes, 4096 * sizeof(uint64_t)); /* At most three quarters full. */
	for (uint32_t i = 0; i < 3072; i++)
		table_put(&t, mix64(i), i);
	assert_int_equal(table_bytes(&t), bytes);
	table_put(&t, mix64(3072), 3072);
	assert_int_equal(table_bytes(&t), 2 * bytes);
	table_clear(&t);
	assert_int_equal(t.n, 0);
	assert_int_equal(count_of(&t, mix64(1), 1), 0);
	table_put(&t, mix64(1), TABLE_NONE - 1);
	assert_int_equal(count_of(&t, mix64(1), TABLE_NONE - 1), 1);
	assert_int_equal(table_bytes(&t), 2 * bytes);
	table_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_table_finds_nothing),
		cmocka_unit_test(changes_agree_with_a_plain_array),
		cmocka_unit_test(keys_are_found_in_their_rows),
		cmocka_unit_test(a_number_is_replaced),
		cmocka_unit_test(a_number_may_be_there_twice),
		cmocka_unit_test(memory_is_what_was_reserved),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
