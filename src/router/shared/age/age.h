/* SPDX-License-Identifier: Apache-2.0 */
/* age: the clock by which the router deletes usage, files, batches and invites (policy/who/age), with its file in
 * cluster.state_dir. */
#pragma once
#include "io/os/loop/loop.h"

#define GW_AGE_EVERY (600 * CGN_SEC) /* Between two writes of the file. */

struct gw_age;
/* Read the file |path|. Without one, the newest file beside it says when a router ran last. */
struct gw_age *gw_age_open(struct cgn_loop *l, const char *path);
void gw_age_close(struct gw_age **take); /* Writes the file. NULL-safe. */
/* Once a second, on the loop: write the file when it is due, and log a wall clock that is far ahead. */
void gw_age_tick(struct gw_age *a);
/* Return the Unix seconds by which things are deleted now. Any thread. */
uint64_t gw_age_now(struct gw_age *a);
