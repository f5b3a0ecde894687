/* SPDX-License-Identifier: Apache-2.0 */
/* fit: the pace of an engine model (lab/enginemodel), found from the requests that engines answered. For each request the
 * measurements say what its engine did meanwhile: how many tokens other requests got, how long their contexts were, which prompts
 * were computed. The time that the terms give for that is compared with the request's own. So the terms are found without a
 * simulation, whose queues would make one error into many. The method is Levenberg's and Marquardt's on the logarithms of the
 * times, with Huber's weights: a few requests that something else delayed do not matter. In the end the engine is played with the
 * terms, and its times are compared with the measured ones. Pure: equal requests give an equal result. */
#pragma once
#include "lab/enginemodel/enginemodel.h"

/* Requests that a fit takes. */
#define FIT_LEAST 20
#define FIT_MOST  10000

struct fit_request {
	cgn_nsec came; /* At the engine; requests are sorted by it. */
	/* Measured from |came|. first: 0 for an answer in one piece. */
	cgn_nsec first, ended;
	uint32_t node;                   /* Requests of a node share an engine; below fit_cfg.nodes. */
	uint32_t prompt, cached, answer; /* Tokens; prompt and answer at least 1, cached below prompt. */
};
struct fit_cfg {
	uint32_t nodes, max_batch, step_tokens; /* As in enginemodel_cfg. */
};

enum fit_term_id {
#define TERM(id, label, flag, help) FIT_##id,
#include "lab/fit/terms.def"
#undef TERM
	FIT_TERMS
};
struct fit_term {
	double ns;
	double error; /* Standard error as a share of |ns|. */
	double share; /* Share of the requests' time that the term causes. */
	/* False: the requests do not tell the term. The other terms were found without it, and |ns| says nothing. */
	bool known;
};
/* Nanoseconds at the quantiles 0.5 and 0.99, of the engine that was played, and measured: to the first token, and between tokens (the
 * mean of each answer). */
struct fit_times {
	double ttft_model[2], ttft_measured[2], itl_model[2], itl_measured[2];
};
struct fit_result {
	struct fit_term terms[FIT_TERMS];
	bool overlaps;
	/* Median distance of the fitted times from the measured ones, as a share: to the first token of prompts that were computed
	 * alone, and from the first token to the last. */
	double first_error, decode_error;
	struct fit_times times;
};
extern const char *const fit_term_labels[FIT_TERMS];
/* INVALID: fewer than FIT_LEAST requests, or more than FIT_MOST. NO_MEMORY. */
CGN_RC fit_run(const struct fit_request *requests, size_t n, const struct fit_cfg *cfg,
	struct fit_result *out, struct cgn_err *err);
/* Play the engine of |terms| with other requests: how near are its times? Their arrivals and tokens are taken, and no times.
 * A term of 0 ns is left out. Fails as fit_run does. */
CGN_RC fit_play(const struct fit_request *requests, size_t n, const struct fit_cfg *cfg,
	const struct fit_result *terms, struct fit_times *out, struct cgn_err *err);
