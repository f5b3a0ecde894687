/* SPDX-License-Identifier: Apache-2.0 */
/* simulate: run a cluster for many seeds, one process each; print the first that fails, shrunk, as a story. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/wait.h>

#include "base/core/err.h"
#include "base/unlikely/unlikely.h"
#include "scenario.h"
#include "scenarios.h"

static const char usage[] =
	"usage: scripts/simulate [--world NAME] [--seed N] [--count N] [--minutes M] [--jobs N] [--twice] [--only FAULT,...]\n"
	"                        [--set KNOB=N]... [--replay N [--log]] [--knobs]\n\n"
	"  --world NAME   what is simulated, see --worlds [cluster]\n"
	"  --seed N       the first seed [1]\n"
	"  --count N      how many seeds [100]\n"
	"  --minutes M    as many seeds as M minutes allow\n"
	"  --jobs N       processes at once [the machine's cores]\n"
	"  --twice        run each seed twice and compare the hashes of all events\n"
	"  --only A,B     of the faults only these (names of knobs, see --knobs); \"none\": no fault\n"
	"  --set KNOB=N   set what the seed would decide; repeatable\n"
	"  --replay N     run one seed and tell its story\n"
	"  --log          with the programs' logs\n"
	"  --all          go on behind a fault; at the end a line for each kind of fault and for each unlikely way\n"
	"  --ways A,B     of the unlikely ways in the programs only these (src/base/unlikely/unlikely.def)\n"
	"  --every-way    fail if an unlikely way that this world reaches was never gone\n"
	"  --no-shrink    print the first fault as it is\n"
	"  --knobs        what a seed decides of a cluster\n"
	"  --worlds       what can be simulated\n\n"
	"examples:\n"
	"  scripts/simulate --count 1000\n"
	"  scripts/simulate --minutes 10 --only kill_engine,cut\n"
	"  scripts/simulate --replay 4711 --log --set nodes=2\n";

struct scenario;
static struct {
	const struct scenario *world;
	uint64_t seed, count, minutes;
	long jobs;
	bool twice, log, shrink, replays, all, every_way;
	const char *ways; /* NULL: all */
} opt = {.seed = 1, .count = 100, .shrink = true};

/* ---- worlds ---- */

struct scenario {
	const char *name;
	void (*run)(void *arg);
	const char *meaning;
};
static const struct scenario scenarios[] = {
	{"cluster", scenario_cluster, "a router, its nodes and clients, by the knobs"},
	{"store", scenario_store, "a block store: kills, power cuts, disks that fail"},
	{"members", scenario_members, "routers and agents that meet in etcd"},
	{"shared", scenario_shared, "routers that share limits through Redis"},
	{"federation", scenario_federation, "two clusters, TLS, hooks, identity"},
};

/* ---- a seed ---- */

void scenario_cluster(void *arg)
{
	(void)arg;
	if (PLAN(rounds))
		world_count_memory();
	cluster_start();
	faults_run();
	load_run();
	cluster.over = hook_calm = true;
	checks_at_rest();
}

/* True if |name| is in the list |names|, with commas between. */
static bool is_in_list(const char *names, const char *name)
{
	for (const char *p = names; *p != '\0';) {
		size_t n = strcspn(p, ",");
		if (strlen(name) == n && memcmp(p, name, n) == 0)
			return true;
		p += n + (p[n] == ',');
	}
	return false;
}

static bool is_way_open(const char *name)
{
	/* Pools are larger, and caches emptier, when such a way is gone: rounds could not be compared. */
	return PLAN(ways) > 0 && PLAN(rounds) == 0 && (opt.ways == NULL || is_in_list(opt.ways, name));
}

static void print_ways_taken(void)
{
	printf("ways");
	for (size_t i = 0; i < UNLIKELY_COUNT; i++)
		printf(" %llu", (unsigned long long)world_way_taken(i));
	printf("\n");
}

/* Run a seed in this process, which ends. */
static _Noreturn void seed_run(uint64_t seed)
{
	plan_draw(seed);
	world_tells = opt.replays;
	world_logs = opt.log;
	world_begin(seed);
	world_ways_begin(seed, is_way_open);
	world_run(opt.world->run, NULL);
	print_ways_taken();
	printf("ok %llu hash %016llx steps %llu ms %llu requests %llu answered %llu refused %llu left %llu broken %llu lost %llu\n",
		(unsigned long long)seed, (unsigned long long)world_hash(), (unsigned long long)world_steps(),
		(unsigned long long)(world_now() / WORLD_MS), (unsigned long long)cluster.sent,
		(unsigned long long)cluster.answered, (unsigned long long)cluster.refused,
		(unsigned long long)cluster.left, (unsigned long long)cluster.broken,
		(unsigned long long)cluster.lost);
	fflush(stdout);
	_exit(0);
}

/* ---- children ---- */

struct child {
	pid_t pid;
	uint64_t seed;
	FILE *out;
};

static void child_start(struct child *c, uint64_t seed)
{
	c->seed = seed;
	c->out = tmpfile();
	if (c->out == NULL || (c->pid = fork()) < 0) {
		perror("simulate");
		exit(1);
	}
	if (c->pid > 0)
		return;
	(void)dup2(fileno(c->out), STDOUT_FILENO);
	(void)dup2(fileno(c->out), STDERR_FILENO);
	seed_run(seed);
}

static uint64_t ways_taken[UNLIKELY_COUNT];

static void note_ways(const char *line)
{
	char *end;
	for (size_t i = 0; i < UNLIKELY_COUNT; i++, line = end)
		ways_taken[i] += strtoull(line, &end, 10);
}

/* Read the child's output; its last line that begins with "ok" or "FAULT" is its result. */
static void child_result(struct child *c, int status, char *result, size_t cap)
{
	char line[4096];
	rewind(c->out);
	result[0] = '\0';
	while (fgets(line, sizeof line, c->out) != NULL)
		if (strncmp(line, "ok ", 3) == 0 || strncmp(line, "FAULT", 5) == 0)
			(void)snprintf(result, cap, "%s", line);
		else if (strncmp(line, "ways ", 5) == 0)
			note_ways(line + 5);
	if (result[0] == '\0' || (WIFSIGNALED(status) && strncmp(result, "ok ", 3) == 0))
		(void)snprintf(result, cap, "FAULT: a crash: %s\n",
			WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "no result");
	(void)fclose(c->out);
}

/* Run a seed in a child to its end. */
static void seed_try(uint64_t seed, char *result, size_t cap)
{
	struct child c;
	int status;
	child_start(&c, seed);
	(void)waitpid(c.pid, &status, 0);
	child_result(&c, status, result, cap);
}

/* ---- shrinking ---- */

/* Two faults are the same when their texts agree up to the second colon. */
static bool is_same_fault(const char *a, const char *b)
{
	const char *pa = strchr(a, ':'), *pb = strchr(b, ':');
	if (strncmp(a, "FAULT", 5) != 0 || strncmp(b, "FAULT", 5) != 0 || pa == NULL || pb == NULL)
		return false;
	size_t n = strcspn(pa + 1, ":\n");
	return n == strcspn(pb + 1, ":\n") && memcmp(pa + 1, pb + 1, n) == 0;
}

static void plan_shrink(uint64_t seed, const char *fault)
{
	char result[4096];
	plan_draw(seed);
	for (bool again = true; again;) {
		again = false;
		for (enum knob k = 0; k < KNOB_COUNT; k++) {
			uint64_t before = plan.at[k];
			bool was_set = plan.set[k];
			for (uint64_t to = knob_least(k); to != before && !again;
				to = to < before ? to + (before - to + 1) / 2 : before) {
				plan.at[k] = to;
				plan.set[k] = true;
				seed_try(seed, result, sizeof result);
				if (is_same_fault(fault, result)) {
					again = true;
					break;
				}
				if (to > before)
					break;
			}
			if (!again) {
				plan.at[k] = before;
				plan.set[k] = was_set;
			} else {
				again = false;
				plan.set[k] = true;
			}
		}
	}
}

static void story_tell(uint64_t seed, const char *fault)
{
	printf("\nseed %llu: %s", (unsigned long long)seed, fault);
	bool knobs = opt.world == &scenarios[0];
	if (opt.shrink && knobs) {
		printf("shrinking ...\n");
		fflush(stdout);
		plan_shrink(seed, fault);
	} else {
		plan_draw(seed);
	}
	if (knobs) {
		printf("\nThe run:\n");
		plan_print();
	}
	printf("\nTo repeat it:\n  scripts/simulate --world %s --replay %llu", opt.world->name,
		(unsigned long long)seed);
	for (enum knob k = 0; knobs && k < KNOB_COUNT; k++)
		if (plan.set[k])
			printf(" --set %s=%llu", knob_name(k), (unsigned long long)plan.at[k]);
	printf("\n\nThe story:\n");
	fflush(stdout);
	opt.replays = true;
	pid_t pid = fork();
	if (pid == 0)
		seed_run(seed);
	(void)waitpid(pid, &(int){0}, 0);
}

/* ---- many seeds ---- */

static double seconds_now(void)
{
	struct timespec ts;
	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static struct {
	uint64_t done, steps, ms, requests, answered, refused, left, broken, lost;
} all;

static void note_result(const char *result)
{
	unsigned long long seed, hash, steps, ms, requests, answered, refused, left, broken, lost;
	if (sscanf(result,
		    "ok %llu hash %llx steps %llu ms %llu requests %llu answered %llu refused %llu left %llu broken %llu lost %llu",
		    &seed, &hash, &steps, &ms, &requests, &answered, &refused, &left, &broken, &lost) != 10)
		return;
	all.done++;
	all.steps += steps;
	all.ms += ms;
	all.requests += requests;
	all.answered += answered;
	all.refused += refused;
	all.left += left;
	all.broken += broken;
	all.lost += lost;
}

static void progress_print(double began, bool last)
{
	static double shown;
	double now = seconds_now();
	if (!last && now - shown < 2)
		return;
	shown = now;
	printf("%llu seeds, ", (unsigned long long)all.done);
	if (all.requests > 0)
		printf("%llu requests (%llu answered, %llu refused, %llu left, %llu ended by an error, %llu lost with the router), ",
			(unsigned long long)all.requests, (unsigned long long)all.answered,
			(unsigned long long)all.refused, (unsigned long long)all.left,
			(unsigned long long)all.broken, (unsigned long long)all.lost);
	printf("%.1f simulated hours, %.0f s, %.0f times as fast as the clock\n", (double)all.ms / 3.6e6,
		now - began, (double)all.ms / 1000 / (now - began));
	fflush(stdout);
}

/* The kinds of faults that were found, with their first seeds. */
static struct {
	char text[400];
	uint64_t seed, times;
} kinds[64];

static void note_fault(uint64_t seed, const char *result)
{
	for (size_t i = 0; i < CGN_COUNT(kinds); i++) {
		if (kinds[i].times > 0 && !is_same_fault(kinds[i].text, result))
			continue;
		if (kinds[i].times++ == 0) {
			kinds[i].seed = seed;
			(void)snprintf(kinds[i].text, sizeof kinds[i].text, "%.390s", result);
		}
		return;
	}
}

static void print_kinds(void)
{
	for (size_t i = 0; i < CGN_COUNT(kinds) && kinds[i].times > 0; i++)
		printf("%6llu times, first seed %llu: %s\n", (unsigned long long)kinds[i].times,
			(unsigned long long)kinds[i].seed, kinds[i].text);
}

static const struct {
	const char *name, *worlds, *meaning;
} ways[UNLIKELY_COUNT] = {
#define UNLIKELY(name, worlds, meaning) {#name, worlds, meaning},
#include "base/unlikely/unlikely.def"
#undef UNLIKELY
};

static void print_ways(void)
{
	for (size_t i = 0; i < UNLIKELY_COUNT; i++)
		if (ways_taken[i] > 0)
			printf("%10llu times %-16s %s\n", (unsigned long long)ways_taken[i], ways[i].name,
				ways[i].meaning);
}

/* Print the ways that this world reaches and that no seed went. False: there is one. */
static bool ways_are_taken(void)
{
	bool every = true;
	for (size_t i = 0; i < UNLIKELY_COUNT; i++)
		if (ways_taken[i] == 0 && is_in_list(ways[i].worlds, opt.world->name)) {
			printf("no seed went the way %s: %s\n", ways[i].name, ways[i].meaning);
			every = false;
		}
	return every;
}

static bool seed_again(uint64_t seed, const char *result)
{
	char other[4096];
	seed_try(seed, other, sizeof other);
	if (strcmp(result, other) == 0)
		return true;
	printf("seed %llu: two runs differ\n  %s  %s", (unsigned long long)seed, result, other);
	return false;
}

static int run_many(void)
{
	struct child children[64] = {{0}};
	double began = seconds_now();
	uint64_t next = opt.seed, end = opt.minutes > 0 ? UINT64_MAX : opt.seed + opt.count;
	long running = 0;
	int bad = 0;
	char result[4096];
	for (;;) {
		if (opt.minutes > 0 && seconds_now() - began > (double)opt.minutes * 60)
			end = next;
		for (long i = 0; i < opt.jobs && !bad; i++)
			if (children[i].pid == 0 && next < end) {
				child_start(&children[i], next++);
				running++;
			}
		if (running == 0)
			break;
		int status;
		pid_t pid = wait(&status);
		for (long i = 0; i < opt.jobs; i++) {
			if (children[i].pid != pid)
				continue;
			struct child c = children[i];
			children[i].pid = 0;
			running--;
			child_result(&c, status, result, sizeof result);
			note_result(result);
			if (bad)
				continue;
			if (strncmp(result, "ok ", 3) != 0) {
				bad = !opt.all;
				note_fault(c.seed, result);
				if (bad)
					story_tell(c.seed, result);
			} else if (opt.twice && !seed_again(c.seed, result)) {
				bad = 1;
			}
		}
		progress_print(began, false);
	}
	progress_print(began, true);
	if (opt.all)
		print_kinds();
	if (opt.all)
		print_ways();
	if (opt.every_way && !ways_are_taken())
		return 1;
	return bad || kinds[0].times > 0;
}

/* ---- the command line ---- */

static bool is_fault(enum knob k)
{
	return k >= KNOB_leaves;
}

static bool is_fault_named(const char *name, size_t n)
{
	for (enum knob k = 0; k < KNOB_COUNT; k++)
		if (is_fault(k) && strlen(knob_name(k)) == n && memcmp(knob_name(k), name, n) == 0)
			return true;
	return n == 4 && memcmp(name, "none", n) == 0;
}

/* Set all faults to their simplest values but those named. False: a name is not a fault's. */
static bool faults_limit(const char *names)
{
	bool named[KNOB_COUNT] = {false};
	for (const char *p = names; *p != '\0';) {
		size_t n = strcspn(p, ",");
		if (!is_fault_named(p, n))
			return false;
		for (enum knob k = 0; k < KNOB_COUNT; k++)
			named[k] |= strlen(knob_name(k)) == n && memcmp(knob_name(k), p, n) == 0;
		p += n + (p[n] == ',');
	}
	for (enum knob k = 0; k < KNOB_COUNT; k++) {
		if (!is_fault(k) || named[k])
			continue;
		plan.at[k] = knob_least(k);
		plan.set[k] = true;
	}
	return true;
}

static void print_knobs(void)
{
	for (enum knob k = 0; k < KNOB_COUNT; k++)
		printf("  %-12s %s%s\n", knob_name(k), knob_meaning(k), is_fault(k) ? " (fault)" : "");
}

static void print_worlds(void)
{
	for (size_t i = 0; i < CGN_COUNT(scenarios); i++)
		printf("  %-12s %s\n", scenarios[i].name, scenarios[i].meaning);
}

static const struct scenario *world_named(const char *name)
{
	for (size_t i = 0; i < CGN_COUNT(scenarios); i++)
		if (strcmp(scenarios[i].name, name) == 0)
			return &scenarios[i];
	return NULL;
}

static void bad_usage(const char *what)
{
	fprintf(stderr, "simulate: %s\n\n%s", what, usage);
	exit(2);
}

static uint64_t number_of(const char *flag, const char *text)
{
	char *end;
	unsigned long long n = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end != '\0') {
		fprintf(stderr, "simulate: %s: \"%s\" is not a number\n\n%s", flag, text, usage);
		exit(2);
	}
	return n;
}

static uint64_t positive_of(const char *flag, const char *text)
{
	uint64_t n = number_of(flag, text);
	if (n > 0)
		return n;
	fprintf(stderr, "simulate: %s: at least 1\n\n%s", flag, usage);
	exit(2);
}

/* Return true if each of |names| is a way in the programs. */
static bool are_ways(const char *names)
{
	for (const char *p = names; *p != '\0';) {
		size_t n = strcspn(p, ","), i = 0;
		while (i < UNLIKELY_COUNT && (strlen(ways[i].name) != n || memcmp(ways[i].name, p, n) != 0))
			i++;
		if (i == UNLIKELY_COUNT)
			return false;
		p += n + (p[n] == ',');
	}
	return true;
}

static void take_args(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
		bool takes = strcmp(a, "--twice") != 0 && strcmp(a, "--log") != 0 &&
			strcmp(a, "--no-shrink") != 0 && strcmp(a, "--all") != 0 &&
			strcmp(a, "--every-way") != 0;
		if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
			fputs(usage, stdout);
			exit(0);
		}
		if (strcmp(a, "--worlds") == 0) {
			print_worlds();
			exit(0);
		}
		if (strcmp(a, "--knobs") == 0) {
			print_knobs();
			exit(0);
		}
		if (takes && v == NULL)
			bad_usage("a flag lacks its value");
		if (strcmp(a, "--twice") == 0)
			opt.twice = true;
		else if (strcmp(a, "--log") == 0)
			opt.log = true;
		else if (strcmp(a, "--all") == 0)
			opt.all = true;
		else if (strcmp(a, "--every-way") == 0)
			opt.every_way = true;
		else if (strcmp(a, "--ways") == 0)
			opt.ways = v;
		else if (strcmp(a, "--no-shrink") == 0)
			opt.shrink = false;
		else if (strcmp(a, "--world") == 0) {
			if ((opt.world = world_named(v)) == NULL)
				bad_usage("--world: no such world; see --worlds");
		} else if (strcmp(a, "--seed") == 0)
			opt.seed = number_of(a, v);
		else if (strcmp(a, "--count") == 0)
			opt.count = positive_of(a, v);
		else if (strcmp(a, "--minutes") == 0)
			opt.minutes = positive_of(a, v);
		else if (strcmp(a, "--jobs") == 0)
			opt.jobs = (long)positive_of(a, v);
		else if (strcmp(a, "--replay") == 0)
			opt.seed = number_of(a, v), opt.replays = true;
		else if (strcmp(a, "--only") == 0 && !faults_limit(v))
			bad_usage("--only: not a fault; see --knobs");
		else if (strcmp(a, "--set") == 0 && !plan_set(v))
			bad_usage("--set: not KNOB=NUMBER; see --knobs");
		else if (strcmp(a, "--set") != 0 && strcmp(a, "--only") != 0)
			bad_usage("an unknown flag");
		i += takes;
	}
	if (opt.ways != NULL && !are_ways(opt.ways))
		bad_usage("--ways: not a way of src/base/unlikely/unlikely.def");
	if (opt.jobs < 1)
		opt.jobs = sysconf(_SC_NPROCESSORS_ONLN);
	opt.jobs = opt.jobs < 1 ? 1 : opt.jobs > 64 ? 64 : opt.jobs;
}

int main(int argc, char **argv)
{
	opt.world = &scenarios[0];
	take_args(argc, argv);
	if (opt.replays)
		seed_run(opt.seed);
	return run_many();
}
