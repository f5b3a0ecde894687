/* SPDX-License-Identifier: Apache-2.0 */
/* try_etcd: run the scenarios of etcd and of Redis for many seeds, each in a process of its own, and tell the story of
 * the first one that fails. try_etcd [--seed N] [--count N] [--jobs N] [--all] [--only members|shared] [--tell] [--log] */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "try.h"

#define TOO_LONG 120 /* s of a processor's time: the seed goes round in circles */

static const char *only = "";

static void seed_run(uint64_t seed)
{
	bool members = strcmp(only, "members") == 0 || (only[0] == '\0' && seed % 2 == 0);
	(void)alarm(TOO_LONG);
	world_begin(seed);
	world_run(members ? try_members : try_shared, NULL);
	printf("seed %llu hash %016llx steps %llu, %.0f s\n", (unsigned long long)seed,
		(unsigned long long)world_hash(), (unsigned long long)world_steps(),
		(double)world_now() / 1e9);
	fflush(stdout);
	_exit(0);
}

static pid_t seed_start(uint64_t seed, bool quiet)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		if (quiet && freopen("/dev/null", "w", stdout) == NULL)
			_exit(1);
		seed_run(seed);
	}
	if (child < 0) {
		perror("fork");
		exit(1);
	}
	return child;
}

/* Run the seed again, to print what it prints. */
static void seed_print(uint64_t seed)
{
	int status = 0;
	printf("seed %llu: ", (unsigned long long)seed);
	(void)waitpid(seed_start(seed, false), &status, 0);
	if (WIFSIGNALED(status))
		printf("ended by signal %d\n", WTERMSIG(status));
}

#define JOBS 16
static struct {
	pid_t child;
	uint64_t seed;
} jobs[JOBS];

/* Wait for one of the children, and forget it. Returns its seed; |*failed|: it failed. */
static uint64_t job_wait(bool *failed)
{
	int status = 0;
	pid_t child = wait(&status);
	*failed = status != 0;
	for (size_t i = 0; i < JOBS; i++)
		if (child > 0 && jobs[i].child == child) {
			jobs[i].child = 0;
			return jobs[i].seed;
		}
	perror("wait");
	exit(1);
}

static void job_start(uint64_t seed)
{
	size_t i = 0;
	while (jobs[i].child != 0)
		i++;
	jobs[i].seed = seed;
	jobs[i].child = seed_start(seed, true);
}

/* Run the seeds, |most| at once. Without |goes_on| the first that fails ends it, with its story. */
static int seeds_try(uint64_t first, uint64_t count, unsigned most, bool goes_on)
{
	unsigned failed = 0, running = 0;
	uint64_t next = first, done = 0;
	while (running > 0 || next < first + count) {
		for (; running < most && next < first + count && (goes_on || failed == 0); running++)
			job_start(next++);
		if (running == 0)
			break;
		bool fails;
		uint64_t seed = job_wait(&fails);
		running--;
		done++;
		if (fails && failed++ == 0 && !goes_on)
			world_tells = true;
		if (fails && (goes_on || failed == 1))
			seed_print(seed);
	}
	printf("%llu seeds, %u fail\n", (unsigned long long)done, failed);
	return failed > 0 ? 3 : 0;
}

int main(int argc, char **argv)
{
	uint64_t first = 1, count = 1, most = 1;
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	bool goes_on = false;
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		if (strcmp(argv[i], "--tell") == 0)
			world_tells = true;
		else if (strcmp(argv[i], "--log") == 0)
			world_tells = world_logs = true;
		else if (strcmp(argv[i], "--all") == 0)
			goes_on = true;
		else if (strcmp(argv[i], "--seed") == 0)
			first = strtoull(value, NULL, 0);
		else if (strcmp(argv[i], "--count") == 0)
			count = strtoull(value, NULL, 0);
		else if (strcmp(argv[i], "--only") == 0)
			only = value;
		else if (strcmp(argv[i], "--jobs") == 0)
			most = strtoull(value, NULL, 0);
	}
	if (count == 1)
		seed_run(first);
	return seeds_try(first, count, (unsigned)(most < JOBS ? most : JOBS), goes_on);
}
