/* SPDX-License-Identifier: Apache-2.0 */
/* parts: the common part of the scenarios of etcd and of Redis: programs that are started again, and faults that pass. */
#pragma once
#include "../world/world.h"
#include "base/core/err.h"
#include "base/core/list.h"
#include "http.h"
#include "model_etcd.h"

extern int cgn_router_main(int argc, char **argv);
extern int cgn_agent_main(int argc, char **argv);
extern int cgn_sim_main(int argc, char **argv);

#define PARTS_MOST 16
/* A program, and whether the scenario wants it to run. An end that the scenario did not ask for is a fault. */
struct kept_part {
	char name[24];
	struct world_host *host;
	world_main *main;
	const char *argv[16];
	struct world_proc *proc;
	bool wanted, paused;
	uint64_t since;   /* When it was started, killed, stopped or went on last */
	uint64_t started; /* When it was started last */
};
struct kept_part *kept_new(struct world_host *h, const char *name, world_main *fn, const char *const *argv);
void kept_start(struct kept_part *p);
void kept_kill(struct kept_part *p); /* As SIGKILL does */
void kept_end(struct kept_part *p);  /* SIGTERM, and wait until it has ended with 0 */
void kept_pause(struct kept_part *p, bool paused);
void kept_watch_parts(void); /* Fail if a part has ended by itself */
bool kept_runs(const struct kept_part *p);
/* Do |fn| after |ns|; kept_settle waits for all of them. */
void kept_later(uint64_t ns, void (*fn)(void *arg, size_t n), void *arg, size_t n);
void kept_settle(void);
/* Ask with GET or POST; the answer's body is in |got|. Returns the status; 0: no whole answer. */
int kept_ask(const struct kept_part *p, uint16_t port, const char *method, const char *path, const char *body,
	struct http_got *got);
/* Return the number after |name| in a JSON text; -1: there is none. */
int64_t kept_number(const struct http_got *got, const char *name);
void kept_file(struct world_host *h, const char *path, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static inline uint64_t kept_between(uint64_t least, uint64_t most)
{
	return least + world_draw(most - least + 1);
}
