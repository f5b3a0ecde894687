/* SPDX-License-Identifier: Apache-2.0 */
/* world: machines, a network, disks, clocks and threads that exist in this process only, below the programs' own
 * code. The linker replaces the calls of the C library and of libuv that reach the kernel (calls.def) with the
 * world's, so that a program's main() runs here unchanged, as one of many processes. Everything that could differ
 * between two runs is drawn from one seed: the same seed and the same code give the same trace.
 *
 * A thread of a simulated process is a fiber. Exactly one fiber runs at a time, until it waits. Time passes while
 * all fibers wait, and a little at each step. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORLD_US  UINT64_C(1000)
#define WORLD_MS  UINT64_C(1000000)
#define WORLD_SEC UINT64_C(1000000000)

struct world_host;
struct world_proc;

/* ---- the world ---- */
/* Begin a world; one at a time. */
void world_begin(uint64_t seed);
/* Run |fn| as the first process and return when it has returned. Its calls of the C library are simulated. */
void world_run(void (*fn)(void *arg), void *arg);
uint64_t world_now(void);   /* ns since the world began */
uint64_t world_steps(void); /* Steps of fibers since then */
uint64_t world_hash(void);  /* Hash of all events so far */
/* Return a number below |n|, from the world's seed; n > 0. */
uint64_t world_draw(uint64_t n);
/* Draw from another stream from now on; return the present one, to go on with it later. */
uint64_t world_stream(uint64_t stream);
/* True once in |n| draws. */
static inline bool world_chance(uint64_t n)
{
	return world_draw(n) == 0;
}
/* Mix a fact into the hash. */
void world_note(const char *what, uint64_t a, uint64_t b);
/* Write a line of the story, with the time before it, when the story is wanted. */
extern bool world_tells;
extern bool world_logs; /* The story has the programs' logs too */
void world_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The run has found a fault: print the reason and end the process with status 3. */
_Noreturn void world_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- ways ---- */
/* Let the seed choose which unlikely ways (base/unlikely) the programs go, among those that |open| allows. */
void world_ways_begin(uint64_t seed, bool (*open)(const char *name));
uint64_t world_way_taken(size_t place); /* Times that the way of an enum unlikely was gone */

/* ---- machines ---- */
/* Make a machine with an address in 10.0.0.0/16 and a name that all machines resolve. */
struct world_host *world_host_new(const char *name);
const char *world_host_address(const struct world_host *h);
/* Called with what a stream socket sends, before it is cut into segments; NULL: no function. */
extern void (*world_tap)(uint32_t to_ip, uint16_t to_port, const char *p, size_t n);
/* Cut the machines off from each other, in both directions, or join them again. Bytes that were sent meanwhile arrive
 * afterwards, as TCP sends it again; a connection that is cut for more than 15 s with data on the way ends. */
void world_cut(struct world_host *a, struct world_host *b, bool cut);
/* The wall clock of a machine jumps. */
void world_wall_jump(struct world_host *h, int64_t ns);
/* Files of a machine, for scenarios. Missing folders are made. */
void world_file_put(struct world_host *h, const char *path, const char *bytes, size_t n);
/* Return the file's content, or NULL; |*n| its size. Valid until the file changes. */
const char *world_file_get(struct world_host *h, const char *path, size_t *n);

/* ---- processes ---- */
typedef int world_main(int argc, char **argv);
/* Start a program on a machine. |argv| ends with NULL and is copied. */
struct world_proc *world_start(struct world_host *h, const char *name, world_main *fn,
	const char *const *argv);
/* The process (NULL: the calling one) uses none of the programs' global variables: they need not be exchanged for it. */
void world_plain(struct world_proc *p);
void world_kill(struct world_proc *p);                /* As SIGKILL does */
void world_signal(struct world_proc *p, int signo);   /* A signal that the program handles, or that ends it */
void world_pause(struct world_proc *p, bool stopped); /* SIGSTOP and SIGCONT */
bool world_alive(const struct world_proc *p);
uint64_t world_age(const struct world_proc *p); /* ns since it was started */
bool world_handles(const struct world_proc *p,
	int signo);                           /* The signal does not end the program by default */
int world_status(const struct world_proc *p); /* Exit status; -signal; only of a process that has ended */
/* Return the text that the process has written to its standard error since the world began, or since the last call with |clear|. */
const char *world_log(struct world_proc *p, size_t *n);
/* Count the bytes that processes allocate from now on. */
void world_count_memory(void);
size_t world_bytes(
	const struct world_proc *p); /* Allocated and not freed, without what calls of the C library got */
/* From now on, one of |files| descriptors that the process wants fails with EMFILE, and one of |memory| allocations of
 * 64 KiB or more; 0: none. */
void world_scarce(struct world_proc *p, uint64_t files, uint64_t memory);
uint64_t world_longest_turn(const struct world_proc *p); /* Calls and KiB of its loops' longest turn */
size_t world_threads(const struct world_proc *p);
size_t world_descriptors(const struct world_proc *p); /* Open descriptors */

/* ---- for scenarios: call on a fiber ---- */
void world_sleep(uint64_t ns);
/* Start another thread of the calling process. */
void world_spawn(void (*fn)(void *arg), void *arg);
