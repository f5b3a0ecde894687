/* SPDX-License-Identifier: Apache-2.0 */
/* wanted: brings the node's engines to what operators want of models. Routers tell the document; the newest one is kept
 * in a file, so that an agent that starts without a router knows it. One loop, its thread. */
#pragma once
#include "agent/engine/engine.h"
#include "policy/node/wanted/wanted.h"

struct statefile;
struct wanted {
	struct cgn_loop *loop;
	const char *node; /* Id of this node; borrowed */
	struct engine *engines;
	size_t n_engines;
	Cognitora__V1__WantedModels *doc; /* Owned; NULL: nothing was told */
	struct statefile *file;           /* NULL: not kept */
	bool unkept;                      /* |doc| is not in the file yet */
	struct cgn_timer timer;           /* Runs while a step is left */
	bool stepping;
};
/* Read the kept document. |engines| may be opened later. */
void wanted_open(struct wanted *w, struct cgn_loop *l, const struct config *cfg, const char *node);
void wanted_close(struct wanted *w);
/* A router told |doc|. A document that is older than the known one is ignored. */
void wanted_told(struct wanted *w, const Cognitora__V1__WantedModels *doc);
/* Take the next steps; call when an engine changed. */
void wanted_step(struct wanted *w);
