/* SPDX-License-Identifier: Apache-2.0 */
/* How much work it is to look up an API key. Who measures the time of refusals must not learn how much of a hash was right. The test counts
 * instructions, one step at a time under ptrace, because times on a busy machine say little. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crypto/crypto.h"
#include "policy/who/auth/auth.h"

#define SECRET      "cgn-the-key-that-an-attacker-shows"
#define LINE_REST   " chat 2026-01-31T08:00:00Z\n"
#define SAME        8    /* Instructions by which equal work may differ. */
#define FOUND_COPY  2000 /* Instructions that copying a key takes: less than a microsecond. */
#define MANY_KEYS   4096
#define MANY_SPREAD 200 /* Instructions by which the average with many keys may differ. */

static const struct digest any_seed = {{1, 2, 3}};

/* ---- a set with one key ---- */

static void line_put(struct cgn_buf *out, unsigned id, const uint8_t hash[AUTH_HASH_BYTES])
{
	cgn_buf_fmt(out, "k%u sha256:", id);
	for (size_t i = 0; i < AUTH_HASH_BYTES; i++)
		cgn_buf_fmt(out, "%02x", hash[i]);
	cgn_buf_str(out, CGN_STR(LINE_REST));
}

static struct auth_keys *keys_of(struct cgn_buf *text, const struct digest *seed)
{
	struct auth_keys *k = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(auth_keys_parse("keys", cgn_buf_view(text), seed, &k, &err)))
		fail_msg("%s", err.msg);
	cgn_buf_fini(text);
	return k;
}

/* Return a set with one key, whose hash agrees with the hash of SECRET in |agree| leading bytes and in none after them. */
static struct auth_keys *keys_near(unsigned agree, const struct digest *seed)
{
	struct sha256 sum = crypto_sha256(CGN_STR(SECRET));
	struct cgn_buf text = {0};
	for (size_t i = agree; i < AUTH_HASH_BYTES; i++)
		sum.b[i] ^= 0x55;
	line_put(&text, 0, sum.b);
	return keys_of(&text, seed);
}

static uint64_t place_of(const struct digest *seed, const uint8_t hash[AUTH_HASH_BYTES])
{
	struct digest d = *seed;
	uint64_t place;
	digest_chain_run(&d, hash, AUTH_HASH_BYTES, 1, &place);
	return place;
}

/* Return a seed with which the two hashes have the same slot and the same tag (of 16 slots and 9 bits), as policy/who/auth/keys.c places them.
 * Only then are the hashes compared. |meet| false: a seed that gives them different slots and tags. */
static struct digest seed_where(bool meet, unsigned agree)
{
	struct sha256 shown = crypto_sha256(CGN_STR(SECRET)), stored = shown;
	struct digest seed = any_seed;
	for (size_t i = agree; i < AUTH_HASH_BYTES; i++)
		stored.b[i] ^= 0x55;
	for (uint32_t n = 0;; n++) {
		memcpy(seed.b + 8, &n, sizeof n);
		uint64_t x = place_of(&seed, shown.b) ^ place_of(&seed, stored.b);
		bool same_slot = (x & 15) == 0, same_tag = x >> 55 == 0;
		if (meet ? same_slot && same_tag : !same_slot && !same_tag)
			return seed;
	}
}

/* ---- counting ---- */

static bool find_once(const struct auth_keys *k, const char *secret)
{
	static struct auth_key key;
	return auth_keys_find(k, cgn_str_of(secret), &key);
}

static _Noreturn void traced_run(const struct auth_keys *k, const char *secret)
{
	(void)find_once(k,
		secret); /* The first call binds functions and finds out what the processor can do. */
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
		_exit(77);
	(void)raise(SIGSTOP);
	bool found = find_once(k, secret);
	(void)raise(SIGSTOP);
	_exit(found ? 1 : 0);
}

/* Return the number of instructions of a look-up, and of raise() twice, which always takes the same. */
static unsigned long look_up_work(const struct auth_keys *k, const char *secret)
{
	unsigned long steps = 0;
	int status;
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0)
		traced_run(k, secret);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status)) {
		print_message("ptrace is not allowed here\n");
		skip();
	}
	for (;; steps++) {
		assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSTOPPED(status));
		if (WSTOPSIG(status) == SIGSTOP)
			break;
		assert_int_equal(WSTOPSIG(status), SIGTRAP);
	}
	assert_int_equal(ptrace(PTRACE_CONT, child, NULL, NULL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return steps;
}

static unsigned long work_near(unsigned agree, bool meet)
{
	const struct digest seed = seed_where(meet, agree);
	struct auth_keys *k = keys_near(agree, &seed);
	unsigned long steps = look_up_work(k, SECRET);
	auth_keys_unref(&k);
	return steps;
}

static unsigned long work_distance(unsigned long a, unsigned long b)
{
	return a > b ? a - b : b - a;
}

/* ---- the tests ---- */

static void bytes_that_agree_take_no_other_work(void **state)
{
	static const unsigned agrees[] = {1, 2, 8, 16, 24, 31};
	(void)state;
	const unsigned long apart = work_near(0, false), first = work_near(0, true);
	assert_true(first > apart); /* With |meet| the hashes were compared indeed. */
	for (size_t i = 0; i < CGN_COUNT(agrees); i++) {
		unsigned long met = work_near(agrees[i], true), missed = work_near(agrees[i], false);
		if (work_distance(met, first) > SAME || work_distance(missed, apart) > SAME)
			fail_msg(
				"%u bytes agree: %lu instructions, and %lu if none does; not compared %lu and %lu",
				agrees[i], met, first, missed, apart);
	}
}

static void a_key_that_exists_takes_a_copy_more(void **state)
{
	(void)state;
	struct auth_keys *k = keys_near(AUTH_HASH_BYTES, &any_seed);
	assert_true(find_once(k, SECRET));
	const unsigned long found = look_up_work(k, SECRET), compared = work_near(31, true);
	auth_keys_unref(&k);
	if (work_distance(found, compared) > FOUND_COPY)
		fail_msg("found: %lu instructions, compared and not found: %lu", found, compared);
}

/* Return the average work for 24 secrets that none of |n| keys has. */
static unsigned long work_with(unsigned n)
{
	struct cgn_buf text = {0};
	char secret[40];
	unsigned long sum = 0;
	for (unsigned i = 0; i < n; i++) {
		(void)snprintf(secret, sizeof secret, "stored %06u", i);
		line_put(&text, i, crypto_sha256(cgn_str_of(secret)).b);
	}
	struct auth_keys *k = keys_of(&text, &any_seed);
	for (unsigned i = 0; i < 24; i++) {
		(void)snprintf(secret, sizeof secret, "shown. %06u", i);
		assert_false(find_once(k, secret));
		sum += look_up_work(k, secret);
	}
	auth_keys_unref(&k);
	return sum / 24;
}

static void many_keys_take_no_more_work(void **state)
{
	(void)state;
	const unsigned long one = work_with(1), many = work_with(MANY_KEYS);
	if (work_distance(one, many) > MANY_SPREAD)
		fail_msg("1 key: %lu instructions, %d keys: %lu", one, MANY_KEYS, many);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_that_agree_take_no_other_work),
		cmocka_unit_test(a_key_that_exists_takes_a_copy_more),
		cmocka_unit_test(many_keys_take_no_more_work),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
