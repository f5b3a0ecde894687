/* SPDX-License-Identifier: Apache-2.0 */
/* model_redis: a Redis with what limits of routers need of it: AUTH, SELECT, PING, SCRIPT LOAD, SET, EVAL and EVALSHA of
 * rate_script (policy/who/rate), which the model runs as the same steps in C, on the clock of its machine. A process of
 * the world, on port 6379. A scenario makes it, starts it, and then breaks it by these calls, on a fiber. */
#pragma once
#include "../world/world.h"
#include "base/core/str.h"

#define REDIS_PORT 6379
struct model_redis;
struct model_redis *model_redis_new(struct world_host *h);
void model_redis_start(struct model_redis *r);
/* |keeps|: it has its keys again when it starts; scripts it has not. */
void model_redis_kill(struct model_redis *r, bool keeps);
bool model_redis_runs(const struct model_redis *r);
void model_redis_pause(struct model_redis *r, bool paused);
/* Answers take up to |most| ns; 0: no time. */
void model_redis_slow(struct model_redis *r, uint64_t most);
/* Each command is refused with this error; NULL: none is. */
void model_redis_refuse(struct model_redis *r, const char *error);
/* All keys are deleted, and the scripts too. */
void model_redis_wipe(struct model_redis *r);
/* Forget the scripts alone. */
void model_redis_forget_scripts(struct model_redis *r);

/* The script's work on one key in one call. */
struct redis_deed {
	uint64_t at;
	const char *from; /* The router's address */
	const char *key;
	bool settles,
		granted; /* A call that settles is always granted; another one has reserved in all its keys, or in none. */
	int64_t cost, room, spent; /* |spent|: a budget's, afterwards */
};
/* All that was done since the beginning. */
const struct redis_deed *model_redis_deeds(const struct model_redis *r, size_t *n);
/* The day since 1970 by the clock of Redis: the number of the present window of a budget of days. */
int64_t model_redis_day(const struct model_redis *r);
/* Return the amount that was spent today of the daily budget whose key ends with |name|; -1: there is no such key. */
int64_t model_redis_spent(const struct model_redis *r, const char *name);
