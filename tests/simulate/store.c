/* SPDX-License-Identifier: Apache-2.0 */
/* store: a block store: clients of its local ports, kills at any moment, power cuts, disks that
 * fail, an index that is damaged. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/resource.h>
#include <sys/wait.h>

#include "../world/disk.h"
#include "../world/world.h"
#include "base/core/err.h"
#include "http.h"
#include "kvcalls.h"
#include "scenarios.h"

#define CLIENTS_MOST  5U
#define STEPS_AT_REST 20000U
#define BUDGET        ((uint64_t)64 << 20)

extern int cgn_kvcached_main(int argc, char **argv);

/* The choices of the seed. */
static struct {
	bool ssd, disk_faults, damages, powers;
	unsigned ram_mib, workers, clients, keys, phases, poll_us;
	const char *admission;
} choices;

static struct {
	struct world_host *host;
	struct world_proc *store;
	bool stop;           /* Clients pause */
	unsigned busy, asks; /* Clients that are in a command */
	unsigned generation; /* The number of the latest client processes: older ones end */
	bool lacking;        /* Values may be missing on disk: it failed, was damaged, or is full */
	bool over, power;    /* |power|: the power has failed */
	uint64_t skipped;
} run;

/* ---- the store ---- */

static void store_files(struct world_host *h)
{
	char c[1000];
	int n = snprintf(c, sizeof c,
		"[security]\ninsecure = true\n[kv]\nram = \"%uMiB\"\nworker_threads = %u\npoll_us = %u\nuds = \"/run/kv.sock\"\n"
		"listen_admin = \"0.0.0.0:7093\"\ntransport = \"off\"\n",
		choices.ram_mib, choices.workers, choices.poll_us);
	if (choices.ssd)
		n += snprintf(c + n, sizeof c - (size_t)n,
			"ssd = \"%lluMiB\"\nssd_dir = \"/var/kv\"\nssd_admission = \"%s\"\n",
			(unsigned long long)(BUDGET >> 20), choices.admission);
	world_file_put(h, "/etc/cgn.toml", c, (size_t)n);
	world_file_put(h, "/run/.keep", "", 0);
	world_file_put(h, "/tmp/.keep", "", 0);
	world_file_put(h, "/var/.keep", "", 0);
}

static void store_start(void)
{
	static const char *const argv[] = {"cgn-kvcached", "--config", "/etc/cgn.toml", NULL};
	run.store = world_start(run.host, "cgn-kvcached", cgn_kvcached_main, argv);
}

static bool store_answers(const char *path, struct http_got *got)
{
	http_ask(&(struct http_want){.ip = world_host_address(run.host),
			 .port = 7093,
			 .method = "GET",
			 .path = path,
			 .timeout = 5 * WORLD_SEC},
		got);
	return got->end == HTTP_WHOLE && got->status == 200;
}

/* Wait until the store answers. */
static void store_ready(void)
{
	struct http_got got;
	for (uint64_t until = world_now() + 300 * WORLD_SEC;;) {
		if (!world_alive(run.store))
			world_fail("the store has ended with status %d instead of starting",
				world_status(run.store));
		bool ready = store_answers("/readyz", &got);
		http_got_fini(&got);
		if (ready)
			return;
		if (world_now() > until)
			world_fail("the store is not ready after 300 s");
		world_sleep(10 * WORLD_MS);
	}
}

/* A number of /store; |part|: its object, or "". */
static uint64_t store_number(const char *part, const char *name)
{
	struct http_got got;
	uint64_t n = UINT64_MAX;
	char key[64];
	if (store_answers("/store", &got)) {
		const char *at = cgn_buf_z(&got.body);
		(void)snprintf(key, sizeof key, "\"%s\":{", part);
		if (part[0] != '\0')
			at = strstr(at, key);
		(void)snprintf(key, sizeof key, "\"%s\":", name);
		at = at != NULL ? strstr(at, key) : NULL;
		if (at != NULL)
			n = strtoull(at + strlen(key) + (at[strlen(key)] == '"'), NULL, 10);
	}
	http_got_fini(&got);
	return n;
}

/* ---- clients ---- */

static int client_main(int argc, char **argv)
{
	static const enum kv_kind kinds[] = {KV_READ, KV_READ, KV_READ, KV_WRITE, KV_WRITE, KV_WRITE,
		KV_REMOVE, KV_REMOVE, KV_LOOK, KV_SWAP, KV_WRITE_NEW};
	struct kvcall c = {.fd = -1};
	unsigned generation = run.generation;
	uint64_t pace = WORLD_US << world_draw(14);
	bool bulk = world_chance(3), tcp = world_chance(2);
	(void)argc, (void)argv;
	while (!run.over && generation == run.generation) {
		if (run.stop || (c.fd < 0 && !kvcall_open(&c, bulk, tcp))) {
			world_sleep(WORLD_MS + world_draw(3 * WORLD_MS));
			continue;
		}
		run.busy++;
		if (!kvcall_op(&c, kinds[world_draw(CGN_COUNT(kinds))], (unsigned)world_draw(choices.keys)) ||
			world_chance(200))
			kvcall_close(&c);
		run.busy--;
		run.asks++;
		world_sleep(1 + world_draw(pace));
	}
	return 0;
}

static void clients_start(void)
{
	static const char *const argv[] = {"client", NULL};
	run.generation++;
	run.busy = 0;
	for (unsigned i = 0; i < choices.clients; i++)
		world_plain(world_start(run.host, "client", client_main, argv));
}

/* Values can have been evicted, and need not be there. */
static bool may_vanish(void)
{
	uint64_t room = choices.ssd ? BUDGET / 4 : (uint64_t)choices.ram_mib << 18;
	return kv_written() > room || run.lacking;
}

/* An index that is made of the values' headers after a power cut may lack the latest marks of removed values. */
static bool may_return(void)
{
	return choices.damages && run.power;
}

/* Wait until no client is in a command. */
static void clients_barrier(void)
{
	run.stop = true;
	for (uint64_t until = world_now() + 120 * WORLD_SEC; run.busy > 0; world_sleep(WORLD_MS))
		if (world_now() > until)
			world_fail("a client still waits for an answer after 120 s");
	kv_barrier(may_vanish());
}

/* ---- the disk ---- */

static void disk_break(void)
{
	struct world_faults f = {0};
	switch (world_draw(6)) {
	case 0:
		f.room = world_disk_used(run.host) + world_draw(4 << 20);
		break;
	case 1:
		f.write_error = 1 + (uint32_t)world_draw(200);
		break;
	case 2:
		f.sync_error = 1 + (uint32_t)world_draw(10);
		break;
	case 3:
		f.read_error = 1 + (uint32_t)world_draw(200);
		break;
	case 4:
		f.sync_ns = (1 + world_draw(5)) * WORLD_SEC;
		break;
	default:
		f.read_only = true;
		break;
	}
	run.lacking |= f.sync_ns == 0;
	world_disk(run.host, &f);
}

/* Damage the index while the store is down, so that the next start reads all headers. */
static void index_damage(void)
{
	static const char *const files[] = {"/var/kv/index/CURRENT", "/var/kv/index/IDENTITY"};
	world_file_damage(run.host, files[world_draw(world_chance(4) ? 2 : 1)], 3);
	run.lacking = true;
}

static void budget_check(const char *when)
{
	uint64_t bytes = world_folder_bytes(run.host, "/var/kv");
	if (choices.ssd && bytes > BUDGET)
		world_fail("%s: the files take %llu bytes, kv.ssd allows %llu", when,
			(unsigned long long)bytes, (unsigned long long)BUDGET);
}

/* Wait until all that is there is on disk. */
static void store_settle(void)
{
	if (!choices.ssd || !world_alive(run.store))
		return;
	for (uint64_t until = world_now() + 120 * WORLD_SEC; store_number("", "ssd_queue_bytes") != 0;
		world_sleep(100 * WORLD_MS))
		if (world_now() > until)
			world_fail("the queue of the SSD is not empty after 120 s");
	world_sleep(WORLD_SEC);
	uint64_t steps = world_steps();
	world_sleep(2 * WORLD_SEC);
	world_tell("%llu steps at rest", (unsigned long long)(world_steps() - steps));
	if (world_steps() - steps > STEPS_AT_REST)
		world_fail("nobody asks and the queue is empty, but threads run: %llu steps in 2 s",
			(unsigned long long)(world_steps() - steps));
	uint64_t skipped = store_number("", "ssd_skipped");
	bool lacks = run.lacking || may_vanish() || skipped != 0 || strcmp(choices.admission, "all") != 0;
	world_tell("settled%s", lacks ? ", values may be missing" : "");
	kv_settled(lacks);
	budget_check("settled");
	uint64_t ram = store_number("ram", "bytes"), most = store_number("ram", "budget_bytes");
	if (ram > most)
		world_fail("the values take %llu bytes of memory, the budget is %llu",
			(unsigned long long)ram, (unsigned long long)most);
}

/* ---- the end of a store, and its next start ---- */

enum end { END_KILL, END_POWER, END_TERM };
static void store_end(enum end how)
{
	if (how == END_POWER && !choices.powers)
		how = END_KILL;
	world_tell("the store ends: %s",
		how == END_KILL            ? "kill -9"
			: how == END_POWER ? "power"
					   : "SIGTERM");
	while (how == END_TERM && world_alive(run.store) && !world_handles(run.store, 15))
		world_sleep(WORLD_MS); /* Until then the signal ends it as any program */
	if (how == END_KILL)
		world_kill(run.store);
	else if (how == END_POWER) {
		run.power = true;
		world_host_crash(run.host);
	} else
		world_signal(run.store, 15);
	for (uint64_t until = world_now() + 120 * WORLD_SEC; world_alive(run.store);
		world_sleep(10 * WORLD_MS))
		if (world_now() > until)
			world_fail("the store does not end after SIGTERM");
	if (how == END_TERM && world_status(run.store) != 0)
		world_fail("the store ends with status %d after SIGTERM", world_status(run.store));
}

/* Start it, and perhaps kill it while it starts, and again. */
static void store_start_hard(void)
{
	bool rebuilds = choices.ssd && choices.damages && world_chance(2);
	if (rebuilds)
		index_damage();
	for (unsigned kills = (unsigned)world_draw(rebuilds ? 4 : 3); kills > 0; kills--) {
		store_start();
		world_sleep(world_draw(60 * WORLD_MS));
		if (world_alive(run.store))
			store_end(world_chance(4) ? END_POWER : world_chance(6) ? END_TERM : END_KILL);
	}
	store_start();
	store_ready();
}

/* Read each key, as the only client. After a start the memory is empty: the store has as many blocks as can be read. */
static int verify_main(int argc, char **argv)
{
	struct kvcall c = {.fd = -1};
	long count = -1, found = 0;
	(void)argc, (void)argv;
	if (!kvcall_open(&c, false, false))
		world_fail("no connection to the store, which is ready");
	count = kvcall_count(&c);
	for (unsigned k = 0; k < choices.keys; k++)
		if (!kvcall_op(&c, KV_READ, k))
			world_fail("the store ends a connection that only reads");
	long after = kvcall_count(&c);
	kvcall_close(&c);
	kv_barrier(may_vanish());
	for (unsigned k = 0; k < choices.keys; k++)
		found += kv_certain(k) > 0;
	world_tell("%ld blocks, %ld of them can be read", count, found);
	bool exact = choices.ssd && !run.lacking && !may_vanish();
	if (exact && !run.power && count != found)
		world_fail("the store counts %ld blocks, %ld can be read", count, found);
	if (exact && after != found)
		world_fail("the store counts %ld blocks, %ld can be read, and still counts %ld", count, found,
			after);
	return 0;
}

static void store_verify(void)
{
	static const char *const argv[] = {"verify", NULL};
	struct world_proc *p = world_start(run.host, "verify", verify_main, argv);
	world_plain(p);
	while (world_alive(p))
		world_sleep(WORLD_MS);
}

/* The store ends and starts. |idle|: no client was in a command. */
static void store_again(enum end how)
{
	if (how == END_POWER && !choices.powers)
		how = END_KILL;
	bool quiet = run.stop && run.busy == 0;
	store_end(how);
	run.generation += how == END_POWER; /* The clients' machine has died with it */
	if (how == END_POWER)
		run.busy = 0;
	if (!quiet)
		clients_barrier();
	run.stop = true;
	bool flushed = how == END_TERM && quiet && choices.ssd;
	if (flushed)
		kv_settled(run.lacking || may_vanish() || strcmp(choices.admission, "all") != 0);
	kv_lost(choices.ssd, run.lacking || may_vanish(), may_return());
	world_disk(run.host, NULL);
	store_start_hard();
	kv_lost(choices.ssd, run.lacking || may_vanish(), may_return());
	store_verify();
	clients_start();
}

/* ---- a seed ---- */

static void phase_run(void)
{
	run.stop = false;
	if (choices.disk_faults && world_chance(2))
		disk_break();
	for (uint64_t until = world_now() + (20 + world_draw(400)) * WORLD_MS; world_now() < until;
		world_sleep(20 * WORLD_MS))
		budget_check("at work");
	if (!world_alive(run.store))
		world_fail("the store has ended by itself, status %d", world_status(run.store));
	if (world_chance(3)) {
		store_again(world_chance(3) ? END_POWER : END_KILL);
		return;
	}
	clients_barrier();
	world_disk(run.host, NULL);
	if (world_chance(2))
		store_settle();
	if (world_chance(2))
		store_again(world_chance(4) ? END_TERM : world_chance(2) ? END_POWER : END_KILL);
}

static void choices_draw(void)
{
	static const char *const admissions[] = {"all", "all", "all", "auto", "reused"};
	choices.ssd = !world_chance(5);
	choices.disk_faults = choices.ssd && world_chance(3);
	choices.damages = choices.ssd && world_chance(3);
	choices.powers = !choices.damages || world_chance(2);
	choices.ram_mib = world_chance(3) ? 8 : 16;
	choices.workers = 1 + (unsigned)world_draw(3);
	choices.clients = 1 + (unsigned)world_draw(CLIENTS_MOST);
	choices.keys = 2 + (unsigned)world_draw(KV_KEYS - 2);
	choices.phases = 1 + (unsigned)world_draw(6);
	choices.poll_us = 0; /* The world has no descriptor of a loop to poll */
	choices.admission = admissions[world_draw(CGN_COUNT(admissions))];
	world_tell("ram %u MiB, %s, admission %s, %u workers, %u clients, %u keys, %u phases%s%s",
		choices.ram_mib, choices.ssd ? "ssd" : "no ssd", choices.admission, choices.workers,
		choices.clients, choices.keys, choices.phases, choices.disk_faults ? ", disk faults" : "",
		choices.damages ? ", damage" : "");
}

void scenario_store(void *arg)
{
	(void)arg;
	choices_draw();
	world_plain(NULL);
	run.host = world_host_new("node-a");
	store_files(run.host);
	kv_model_begin(choices.keys);
	store_start();
	store_ready();
	clients_start();
	for (unsigned i = 0; i < choices.phases; i++)
		phase_run();
	clients_barrier();
	world_disk(run.host, NULL);
	store_settle();
	store_end(END_TERM);
	run.over = true;
	if (world_descriptors(run.store) > 0)
		world_fail("the store has open descriptors after its end");
}
