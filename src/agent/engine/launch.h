/* SPDX-License-Identifier: Apache-2.0 */
/* launch: the launch plans of the node's managed engines (policy/node/engine), with what only the agent knows: the
 * node's address and where the engines' own files are. Any thread; nothing is started. */
#pragma once
#include "policy/node/engine/launch.h"

#define ENGINE_PLAN_BYTES ((size_t)256 << 10) /* Memory of a plan's strings */

/* Return the begin of the paths of an engine's own files and sockets in |*out|, in |a|. CGN_NO_MEMORY, CGN_INVALID:
 * the node's id. */
CGN_RC engine_prefix(const struct config *cfg, const struct config_engine *ce, struct cgn_arena *a,
	const char **out, struct cgn_err *err);
/* Build the plan; out->arena is set. Fails as engine_launch_make does. */
CGN_RC engine_plan(const struct config *cfg, const struct config_engine *ce, const struct weburl *url,
	struct engine_launch *out, struct cgn_err *err);
/* Write the plan's files, which are in |dir|, in the way of disk_write_file_atomic. */
CGN_RC engine_plan_write(const struct engine_launch *plan, const char *dir, struct cgn_err *err);
/* Serves --print-argv: append the plan of the managed engine as JSON, of several ones as a list. */
CGN_RC engine_print_argv(const struct config *cfg, struct cgn_buf *out, struct cgn_err *err);
