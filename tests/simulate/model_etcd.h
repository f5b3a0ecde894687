/* SPDX-License-Identifier: Apache-2.0 */
/* model_etcd: etcd with up to ETCD_MEMBERS members, each a process of the world that serves gRPC on port 2379 of its
 * machine: KV, leases that end in simulated time, watches from a revision. All members have the same data, as long as
 * most of them work together; else they answer UNAVAILABLE or not at all, and their watches are silent.
 *
 * A scenario makes it, starts the members, and then changes the data and breaks members by these calls, on a fiber. */
#pragma once
#include "../world/world.h"
#include "base/core/str.h"

#define ETCD_MEMBERS 3
#define ETCD_PORT    2379
struct model_etcd;
struct model_etcd *model_etcd_new(struct world_host *const *hosts, size_t n);
/* ---- members ---- */
void model_etcd_start(struct model_etcd *e, size_t member);
void model_etcd_kill(struct model_etcd *e, size_t member);
bool model_etcd_runs(const struct model_etcd *e, size_t member);
/* The member runs, hears the others and is not slow. */
bool model_etcd_healthy(const struct model_etcd *e, size_t member);
void model_etcd_pause(struct model_etcd *e, size_t member, bool paused);
/* The member hears nothing of the others. */
void model_etcd_isolate(struct model_etcd *e, size_t member, bool isolated);
/* From now on the answers of a member take up to |most| ns, before or after the change is made; 0: none. */
void model_etcd_slow(struct model_etcd *e, size_t member, uint64_t most);
/* The member ends all its watches, as one that is overloaded does. */
void model_etcd_end_watches(struct model_etcd *e, size_t member);
/* Can changes be made now? */
bool model_etcd_works(const struct model_etcd *e);
/* ---- data ---- */
/* All members must have been killed: they start with nothing, as the same cluster or as |another| one. */
void model_etcd_wipe(struct model_etcd *e, bool another);
/* Remember all data now, and go back to it. The second needs all members killed. */
void model_etcd_save(struct model_etcd *e);
void model_etcd_restore(struct model_etcd *e);
/* Forget the changes before the last |keep| ones. */
void model_etcd_compact(struct model_etcd *e, int64_t keep);
void model_etcd_put(struct model_etcd *e, const char *key, const char *value);
void model_etcd_delete(struct model_etcd *e, const char *key);
/* End the lease that the key is under. */
void model_etcd_lose(struct model_etcd *e, const char *key);
int64_t model_etcd_revision(const struct model_etcd *e);
/* The value now; NULL: there is no such key. Valid until the next change. */
const char *model_etcd_value(const struct model_etcd *e, const char *key);
/* When the key was deleted; 0: it is there, or never was. */
uint64_t model_etcd_gone_at(const struct model_etcd *e, const char *key);
size_t model_etcd_count(const struct model_etcd *e, const char *prefix);
