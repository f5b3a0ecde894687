/* SPDX-License-Identifier: Apache-2.0 */
/* kvdisk under kill -9: a process puts, replaces and removes values with several threads while room is made
 * all the time. The process is killed at a random point, and another process checks the values. The model
 * lies in memory that both share. The test process itself never opens a store, because RocksDB's threads do
 * not survive a fork. */
#include "base/mix/mix.h"
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "disk_folder.h"

#define ROUNDS  12
#define THREADS 3
#define KEYS    300U /* Keys of each thread. */
#define NONE    0U

/* Versions that a key may hold: the version before the running call, or the one after it. */
struct model {
	struct {
		_Atomic uint32_t before, after;
	} key[THREADS * KEYS];
	_Atomic uint64_t version, gone, calls, seen;
	_Atomic bool ready;
};
static struct model *model;
static char dir[64];

static uint64_t random_next(uint64_t *dice)
{
	*dice ^= *dice << 13;
	*dice ^= *dice >> 7;
	*dice ^= *dice << 17;
	return *dice;
}

static size_t size_of(uint32_t version)
{
	uint64_t dice = version * MIX_GOLDEN + 1;
	(void)random_next(&dice);
	return random_next(&dice) % 3 == 0 ? random_next(&dice) % 30000 : 32768 + random_next(&dice) % 200000;
}

static void value_fill(uint8_t *p, size_t n, uint32_t key, uint32_t version)
{
	uint64_t x = ((uint64_t)key << 32 | version) * MIX_GOLDEN + n;
	for (size_t i = 0; i < n; i += sizeof x) {
		(void)random_next(&x);
		memcpy(p + i, &x, n - i < sizeof x ? n - i : sizeof x);
	}
}

static struct block_key key_of(uint32_t i)
{
	return (struct block_key){.digest = digest_of((struct cgn_str){(const char *)&i, sizeof i}),
		.segment = i};
}

static enum kvdisk_worth worth_of(void *user, const struct block_key *k, kvdisk_place at)
{
	(void)user;
	(void)at;
	return k->segment % 3 == 0 ? KVDISK_CARRY : KVDISK_DROP;
}

static void on_gone(void *user, const struct block_key *k, kvdisk_place at)
{
	(void)user;
	(void)k;
	(void)at;
	atomic_fetch_add(&model->gone, 1);
}

static void child_die(const char *what, uint32_t key, uint32_t is)
{
	fprintf(stderr, "key %u: %s: version %u, may be %u or %u\n", key, what, is, model->key[key].before,
		model->key[key].after);
	_exit(1);
}

static struct kvdisk *open_store(void)
{
	static const struct kvdisk_owner owner = {.worth = worth_of, .gone = on_gone};
	const struct kvdisk_cfg cfg = {.dir = dir, .budget = (uint64_t)48 << 20, .owner = &owner};
	struct kvdisk_opening how;
	struct cgn_err err = {0};
	struct kvdisk *d = NULL;
	if (!cgn_ok(kvdisk_open(&cfg, &d, &how, &err))) {
		fprintf(stderr, "%s\n", err.msg);
		_exit(1);
	}
	if (how.rebuilt || how.small_lost) {
		fprintf(stderr, "a kill must not damage a value: %s\n", how.why);
		_exit(1);
	}
	return d;
}

/* ---- the process that is killed ---- */
static void one_call(struct kvdisk *d, uint32_t i, uint64_t *dice, uint8_t *scratch)
{
	struct block_key k = key_of(i);
	kvdisk_place at;
	if (random_next(dice) % 4 == 0) {
		atomic_store(&model->key[i].after, NONE);
		(void)kvdisk_remove(d, &k);
		atomic_store(&model->key[i].before, NONE);
		return;
	}
	uint32_t version = (uint32_t)atomic_fetch_add(&model->version, 1) + 1;
	size_t n = size_of(version);
	struct block_meta meta = {.tokens = version};
	struct iovec iov = {scratch, n};
	value_fill(scratch, n, i, version);
	atomic_store(&model->key[i].after, version);
	if (!cgn_ok(kvdisk_put(d, &k, &meta, XXH3_64bits(scratch, n), &iov, 1, &at, NULL)))
		child_die("not put", i, version);
	atomic_store(&model->key[i].before, version);
}

struct storm {
	struct kvdisk *d;
	uint32_t thread;
	uint64_t dice;
};

static void *child_storm(void *arg)
{
	struct storm *s = arg;
	uint8_t *scratch = malloc((size_t)1 << 18);
	for (;;) {
		one_call(s->d, s->thread * KEYS + (uint32_t)(random_next(&s->dice) % KEYS), &s->dice,
			scratch);
		atomic_fetch_add(&model->calls, 1);
		if (s->thread == 0 && random_next(&s->dice) % 16 == 0)
			kvdisk_tend(s->d);
	}
	return NULL;
}

static void run_until_killed(uint64_t dice)
{
	struct storm s[THREADS];
	pthread_t t;
	struct kvdisk *d = open_store();
	for (uint32_t i = 0; i < THREADS; i++) {
		s[i] = (struct storm){d, i, dice + i * 7919 + 1};
		if (pthread_create(&t, NULL, child_storm, &s[i]) != 0)
			_exit(1);
	}
	atomic_store(&model->ready, true);
	for (;;)
		pause();
}

/* ---- the process that checks ---- */
static void look_at(struct kvdisk *d, uint32_t i, uint8_t *scratch, uint8_t *want)
{
	struct block_key k = key_of(i);
	struct record r;
	struct kvdisk_value v;
	char names[KVDISK_NAMES];
	uint32_t before = model->key[i].before, after = model->key[i].after, is = NONE;
	if (cgn_ok(entry_get(d, &k, &r, names))) {
		struct iovec iov = {scratch, r.entry.size};
		enum cgn_code c = kvdisk_get(d, &k, r.entry.place, &iov, 1, &v, NULL).code;
		if (c == CGN_STORAGE)
			child_die("damaged", i, r.entry.meta.tokens);
		if (c == CGN_FINE) {
			is = v.meta.tokens;
			value_fill(want, r.entry.size, i, is);
			if (r.entry.size != size_of(is) || memcmp(want, scratch, r.entry.size) != 0)
				child_die("wrong bytes", i, is);
			atomic_fetch_add(&model->seen, 1);
		}
	}
	/* NONE: the value was evicted to make room. */
	if (is != NONE && is != before && is != after)
		child_die("of long ago", i, is);
	if (is == NONE && before == after && before != NONE && model->gone == 0)
		child_die("lost", i, before);
	model->key[i].before = model->key[i].after = is;
}

static void store_look(void)
{
	uint8_t *scratch = malloc((size_t)1 << 18), *want = malloc((size_t)1 << 18);
	struct kvdisk *d = open_store();
	struct kvdisk_stats s;
	kvdisk_stats(d, &s);
	if (s.bytes > s.budget) {
		fprintf(stderr, "%llu bytes of %llu\n", (unsigned long long)s.bytes,
			(unsigned long long)s.budget);
		_exit(1);
	}
	for (uint32_t i = 0; i < THREADS * KEYS; i++)
		look_at(d, i, scratch, want);
	kvdisk_close(&d);
	free(scratch);
	free(want);
	_exit(0);
}

static void test_killed_at_any_moment(void **state)
{
	uint64_t dice = 0x1234567;
	(void)state;
	for (unsigned round = 0; round < ROUNDS; round++) {
		int status = 0;
		model->ready = false;
		pid_t storming = fork();
		if (storming == 0)
			run_until_killed(random_next(&dice));
		(void)random_next(&dice);
		/* The number of further calls; then the process is killed during one of the next ones. */
		uint64_t calls = 1 + random_next(&dice) % 400;
		uint64_t until = model->calls + calls;
		while (!model->ready || model->calls < until) {
			/* The process does not end by itself. */
			assert_int_equal(waitpid(storming, &status, WNOHANG), 0);
			(void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		}
		assert_int_equal(kill(storming, SIGKILL), 0);
		assert_int_equal(waitpid(storming, &status, 0), storming);
		pid_t looking = fork();
		if (looking == 0)
			store_look();
		assert_int_equal(waitpid(looking, &status, 0), looking);
		assert_int_equal(status, 0);
	}
	/* Room was made, and values were left to compare. */
	assert_true(model->gone > 0 && model->seen > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_at_any_moment)};
	model = mmap(NULL, sizeof *model, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CGN_MUST(model != MAP_FAILED);
	disk_folder_make(dir, "kvdisk");
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	disk_folder_remove(dir);
	return failed;
}
