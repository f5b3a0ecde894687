/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/kvstore/kvstore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct kv_key key_of(const char *z)
{
	return (struct kv_key){.digest = digest_of(cgn_str_of(z))};
}

static void put(struct kvstore *s, const char *name, const char *value)
{
	struct kv_key k = key_of(name);
	struct kv_meta meta = {.model = CGN_STR("m")};
	struct kv_writer *w = NULL;
	struct cgn_err err = {0};
	assert_true(cgn_ok(kvstore_put(s, &k, &meta, strlen(value), &w, &err)));
	kv_writer_add(w, value, strlen(value));
	assert_true(cgn_ok(kv_writer_commit(&w, NULL, false, &err)));
}

static void test_what_is_put_is_got(void **state)
{
	struct kvstore_cfg cfg = {.ram_bytes = (uint64_t)8 << 20};
	struct kvstore *s = NULL;
	struct cgn_err err = {0};
	struct iovec iov[4];
	size_t n = 0;
	(void)state;
	assert_true(cgn_ok(kvstore_new(&cfg, &s, &err)));
	put(s, "a", "hello");
	struct kv_key k = key_of("a"), other = key_of("b");
	struct kv_block *b = kvstore_get_ram(s, &k, true);
	assert_non_null(b);
	assert_int_equal(kv_block_iov(b, 1, 3, iov, 4, &n), 3);
	assert_memory_equal(iov[0].iov_base, "ell", 3);
	assert_null(kvstore_get_ram(s, &other, true));
	assert_true(kvstore_remove(s, &k));
	assert_false(kvstore_remove(s, &k));
	assert_memory_equal(iov[0].iov_base, "ell", 3); /* as long as it is held */
	kv_block_unref(&b);
	kvstore_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_put_is_got)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
