/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "policy/kv/kvbulk/kvbulk.h"

static const struct block_key key = {.digest = {{1, 2, 3}}, .segment = 7};
static const struct block_info info = {.size = 5,
	.checksum = 0x1122334455667788,
	.tokens = 16,
	.tiers = 6,
	.pinned = true,
	.created_unix_ms = 9,
	.expires_unix_ms = 10};

static struct kvbulk_msg read_back(const struct cgn_buf *b)
{
	struct kvbulk_msg m;
	struct cgn_err err = {0};
	cgn_rc rc = kvbulk_read(cgn_buf_view(b), &m, &err);
	if (!cgn_ok(rc))
		print_error("%s\n", err.msg);
	assert_true(cgn_ok(rc));
	return m;
}

static void expect_refused(const struct cgn_buf *b, const char *sentence)
{
	struct kvbulk_msg m;
	struct cgn_err err = {0};
	assert_int_equal(kvbulk_read(cgn_buf_view(b), &m, &err).code, CGN_INVALID);
	if (strstr(err.msg, sentence) == NULL)
		print_error("\"%s\" does not say \"%s\"\n", err.msg, sentence);
	assert_non_null(strstr(err.msg, sentence));
}

static void the_layout_is_what_the_header_says(void **state)
{
	(void)state;
	const struct kvbulk_msg m = {.type = KVBULK_GET,
		.flags = KVBULK_VERIFY,
		.id = 0x0102030405060708,
		.key = key};
	struct cgn_buf b = {0};
	kvbulk_write(&m, &b);
	assert_int_equal(b.n, 16 + 36);
	const uint8_t head[16] = {3, 2, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
	assert_memory_equal(b.p, head, sizeof head);
	assert_memory_equal(b.p + 16, &key.digest, 32);
	const uint8_t segment[4] = {7, 0, 0, 0};
	assert_memory_equal(b.p + 48, segment, 4);
	cgn_buf_fini(&b);
}

static void what_a_get_is_worth_goes_along_with_peers(void **state)
{
	(void)state;
	struct kvbulk_msg m = {.type = KVBULK_GET,
		.flags = KVBULK_PEERS,
		.budget_ms = 250,
		.id = 1,
		.key = key};
	struct cgn_buf b = {0};
	kvbulk_write(&m, &b);
	assert_int_equal(read_back(&b).budget_ms, 250);
	b.p[1] = 0;
	expect_refused(&b, "GET has flags that do not exist");
	cgn_buf_fini(&b);
}

static void a_pin_says_which_block_and_for_how_long(void **state)
{
	(void)state;
	const uint64_t times[] = {0, 60000, UINT64_MAX}; /* The first unpins, the last is without an end. */
	for (size_t i = 0; i < CGN_COUNT(times); i++) {
		const struct kvbulk_msg m = {.type = KVBULK_PIN, .id = 4, .key = key, .for_ms = times[i]};
		struct cgn_buf b = {0};
		kvbulk_write(&m, &b);
		struct kvbulk_msg r = read_back(&b);
		assert_int_equal(r.type, KVBULK_PIN);
		assert_true(block_key_eq(&r.key, &key));
		assert_true(r.for_ms == times[i]);
		b.n--;
		expect_refused(&b, "PIN");
		cgn_buf_fini(&b);
	}
}

static void a_hello_begins_with_its_magic(void **state)
{
	(void)state;
	const struct kvbulk_msg m = {.type = KVBULK_HELLO, .version = KVBULK_VERSION};
	struct cgn_buf b = {0};
	kvbulk_write(&m, &b);
	assert_memory_equal(b.p + 16, "CGNKVBLK", 8);
	assert_int_equal(read_back(&b).version, KVBULK_VERSION);
	b.p[16] = 'c';
	expect_refused(&b, "HELLO of 28 bytes");
	cgn_buf_fini(&b);
}

static void a_put_keeps_everything(void **state)
{
	(void)state;
	struct kvbulk_msg m = {.type = KVBULK_PUT,
		.flags = KVBULK_CHECKSUM,
		.id = 3,
		.key = key,
		.info = info,
		.model = CGN_STR("m"),
		.name = CGN_STR("n:1"),
		.text = CGN_STR("value")};
	struct cgn_buf b = {0};
	m.flags |= KVBULK_TENANT;
	m.tenant = CGN_STR("acme");
	kvbulk_write(&m, &b);
	assert_true(cgn_str_is(read_back(&b).tenant, "acme"));
	b.p[16] = 127; /* a tenant as long as the rest of the message, and more */
	expect_refused(&b, "is not what its fields say");
	b.n = 0;
	m.flags &= (uint8_t)~KVBULK_TENANT;
	kvbulk_write(&m, &b);
	struct kvbulk_msg r = read_back(&b);
	assert_true(block_key_eq(&r.key, &key) && r.tenant.n == 0);
	assert_int_equal(r.info.size, 5);
	assert_int_equal(r.info.checksum, info.checksum);
	assert_int_equal(r.info.created_unix_ms, 9);
	assert_true(cgn_str_is(r.model, "m") && cgn_str_is(r.name, "n:1") && cgn_str_is(r.text, "value"));
	b.n--;
	expect_refused(&b, "PUT of 5 bytes brings 4");
	b.n++;
	b.p[1] |= KVBULK_FILE;
	expect_refused(&b, "a descriptor, and 5 bytes");
	cgn_buf_fini(&b);
}

static void a_name_has_its_bound(void **state)
{
	(void)state;
	char name[BLOCK_MAX_NAME + 1];
	memset(name, 'x', sizeof name);
	struct kvbulk_msg m = {.type = KVBULK_PUT, .key = key, .name = {name, sizeof name}};
	struct cgn_buf b = {0};
	kvbulk_write(&m, &b);
	expect_refused(&b, "is not what its fields say");
	b.n = 0;
	m.name.n--;
	kvbulk_write(&m, &b);
	assert_int_equal(read_back(&b).name.n, BLOCK_MAX_NAME);
	cgn_buf_fini(&b);
}

static void set_count(struct cgn_buf *b, uint16_t count)
{
	count = htole16(count);
	memcpy(b->p + 2, &count, sizeof count);
}

static void lists_have_as_many_items_as_they_say(void **state)
{
	(void)state;
	const struct kvbulk_msg m = {.type = KVBULK_LOOKUP, .id = 1};
	struct cgn_buf b = {0};
	kvbulk_write(&m, &b);
	expect_refused(&b, "LOOKUP of nothing");
	for (uint32_t i = 0; i < KVBULK_MAX_ITEMS; i++)
		kvbulk_add_key(&b, &(struct block_key){.segment = i});
	expect_refused(&b, "is not what its fields say");
	set_count(&b, KVBULK_MAX_ITEMS);
	assert_true(b.n <= KVBULK_MAX_MESSAGE);
	struct kvbulk_msg r = read_back(&b);
	for (uint32_t i = 0; i < KVBULK_MAX_ITEMS; i++)
		assert_int_equal(kvbulk_key(&r, i).segment, i);
	set_count(&b, KVBULK_MAX_ITEMS + 1);
	expect_refused(&b, "with 1281 items: at most 1280");
	cgn_buf_fini(&b);
}

static void answers_come_back(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	const struct kvbulk_msg infos = {.type = KVBULK_INFOS, .count = 1, .id = 4};
	kvbulk_write(&infos, &b);
	kvbulk_add_info(&b, &info);
	struct kvbulk_msg r = read_back(&b);
	struct block_info i = kvbulk_info(&r, 0);
	assert_true(i.pinned && i.tiers == 6 && i.tokens == 16 && i.expires_unix_ms == 10);
	b.n = 0;
	const struct block_change gone = {.key = key, .size = 11};
	const struct kvbulk_msg changes = {.type = KVBULK_CHANGES, .flags = KVBULK_RESET, .count = 1};
	kvbulk_write(&changes, &b);
	kvbulk_add_change(&b, &gone);
	r = read_back(&b);
	struct block_change c = kvbulk_change(&r, 0);
	assert_true(block_key_eq(&c.key, &key) && c.tiers == 0 && c.size == 11);
	b.n = 0;
	b.n = 0;
	const struct kvbulk_msg get = {.type = KVBULK_GET, .count = 1, .key = key};
	kvbulk_write(&get, &b);
	kvbulk_add_lease(&b, 77);
	r = read_back(&b);
	assert_true(block_key_eq(&r.key, &key) && kvbulk_lease(&r, 0) == 77);
	b.n = 0;
	const struct kvbulk_msg released = {.type = KVBULK_RELEASE, .count = 2};
	kvbulk_write(&released, &b);
	kvbulk_add_lease(&b, 5);
	kvbulk_add_lease(&b, UINT64_MAX);
	r = read_back(&b);
	assert_true(kvbulk_lease(&r, 0) == 5 && kvbulk_lease(&r, 1) == UINT64_MAX);
	cgn_buf_fini(&b);
}

static void a_value_is_the_sum_of_its_extents(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct kvbulk_msg m =
		{.type = KVBULK_VALUE, .id = 4, .lease = 6, .count = 2, .info = info, .model = CGN_STR("m")};
	kvbulk_write(&m, &b);
	kvbulk_add_extent(&b, (struct kvbulk_extent){65536, 3});
	kvbulk_add_extent(&b, (struct kvbulk_extent){0, 2});
	struct kvbulk_msg r = read_back(&b);
	assert_true(r.lease == 6 && kvbulk_extent(&r, 0).offset == 65536 && kvbulk_extent(&r, 1).length == 2);
	b.p[b.n - 8] = 3;
	expect_refused(&b, "are not 5 bytes");
	b.p[b.n - 8] = 0;
	expect_refused(&b, "are not 5 bytes");
	memset(b.p + b.n - 16, 0xff, 16);
	expect_refused(&b, "are not 5 bytes");
	cgn_buf_fini(&b);
}

static void an_unknown_type_is_refused(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	expect_refused(&b, "of type 0");
	const struct kvbulk_msg m = {.type = KVBULK_WATCH, .id = 1};
	kvbulk_write(&m, &b);
	b.p[0] = 64;
	expect_refused(&b, "of type 64");
	b.p[0] = (char)200;
	expect_refused(&b, "of type 200");
	b.p[0] = KVBULK_WATCH;
	b.p[1] = 2;
	expect_refused(&b, "WATCH has flags that do not exist: 0x2");
	b.p[1] = 0;
	b.p[2] = 1;
	expect_refused(&b, "WATCH with 1 items: at most 0");
	b.p[2] = 0;
	b.n--;
	expect_refused(&b, "WATCH of 15 bytes");
	cgn_buf_fini(&b);
}

/* Every prefix of every message is refused or is a message; no read goes beyond its end. */
static void nothing_truncated_is_taken(void **state)
{
	(void)state;
	for (unsigned type = 0; type < 80; type++) {
		struct cgn_buf b = {0};
		struct kvbulk_msg m = {.type = (enum kvbulk_type)type,
			.model = CGN_STR("mm"),
			.name = CGN_STR("nn"),
			.text = CGN_STR("sentence"),
			.info = {.size = 8}};
		kvbulk_write(&m, &b);
		for (size_t n = 0; n + 1 < b.n; n++) {
			char *exact = malloc(n + 1); /* Exact size, for the sanitizer. */
			memcpy(exact, b.p, n);
			struct kvbulk_msg r;
			(void)!cgn_ok(kvbulk_read((struct cgn_str){exact, n}, &r, NULL));
			assert_true(n < 16 ? r.id == 0 : true);
			free(exact);
		}
		cgn_buf_fini(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_layout_is_what_the_header_says),
		cmocka_unit_test(what_a_get_is_worth_goes_along_with_peers),
		cmocka_unit_test(a_pin_says_which_block_and_for_how_long),
		cmocka_unit_test(a_hello_begins_with_its_magic),
		cmocka_unit_test(a_put_keeps_everything),
		cmocka_unit_test(a_name_has_its_bound),
		cmocka_unit_test(lists_have_as_many_items_as_they_say),
		cmocka_unit_test(answers_come_back),
		cmocka_unit_test(a_value_is_the_sum_of_its_extents),
		cmocka_unit_test(an_unknown_type_is_refused),
		cmocka_unit_test(nothing_truncated_is_taken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
