/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of membership share this: they run turns of a loop until a condition holds, and note the events. */
#pragma once
#include <string.h>
#include <unistd.h>

#include <uv.h>

#include "base/core/buf.h"
#include "io/os/loop/loop.h"

/* End a turn soon even when nothing arrives. */
static void world_tick(struct cgn_timer *t)
{
	cgn_timer_set(t, 5 * CGN_MSEC);
}

/* Run turns until the condition holds. The alarm ends a hang. */
#define until(w, cond)                                                  \
	do {                                                            \
		alarm(50);                                              \
		while (!(cond))                                         \
			(void)uv_run(cgn_loop_uv((w)->l), UV_RUN_ONCE); \
		alarm(0);                                               \
	} while (0)

static bool was_told(struct cgn_buf *told, const char *text)
{
	return strstr(cgn_buf_z(told), text) != NULL;
}
