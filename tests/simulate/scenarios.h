/* SPDX-License-Identifier: Apache-2.0 */
/* scenarios: the worlds that a seed can run, each the body of world_run. */
#pragma once

void scenario_cluster(void *arg);    /* main.c: a router and its nodes, by the knobs of plan.h */
void scenario_store(void *arg);      /* store.c: a block store and its disk */
void scenario_members(void *arg);    /* members.c: routers and agents that meet in etcd */
void scenario_shared(void *arg);     /* shared.c: routers that share limits through Redis */
void scenario_federation(void *arg); /* federation.c: two clusters, TLS, hooks, identity */
