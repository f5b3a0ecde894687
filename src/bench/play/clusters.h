/* SPDX-License-Identifier: Apache-2.0 */
/* clusters: bench replay with several clusters, compared with clusters that do not know each other and with a cluster of all
 * nodes. */
#pragma once
#include "bench/bench.h"
#include "lab/replay/federation.h"
#include "policy/config/config.h"

/* The settings of the flags and of a router's configuration. */
struct ctl_clusters {
	struct federation_cfg cfg; /* Without |replay|. */
	uint64_t way_ms[FEDERATION_CLUSTERS * (FEDERATION_CLUSTERS - 1) / 2];
	struct federation_cut cuts[FEDERATION_CUTS];
	double swing;
};
/* Read --clusters and what belongs to it. cfg.clusters is 1 without. */
CGN_RC ctl_clusters_read(const struct ctl_args *a, const struct config *cfg, struct ctl_clusters *out,
	struct cgn_err *err);
/* Play |t| with |replay|, whose nodes are those of one cluster, and print the results. */
CGN_RC ctl_clusters_run(const struct ctl_args *a, const struct trace *t, const char *name,
	const struct replay_cfg *replay, struct ctl_clusters *c, struct cgn_err *err);
