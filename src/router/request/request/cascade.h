/* SPDX-License-Identifier: Apache-2.0 */
/* cascade: the smaller models that are asked before the one that the client named, and the answer of one of them that is
 * held back. The folder cascade/ owns it. */
#pragma once
#include "policy/answer/cascade/cascade.h"
#include "router/shared/rules/cascade.h"

/* Tokens that were computed for answers that the client did not get. */
struct gw_wasted {
	uint64_t input, cached, output; /* |cached| of |input| */
};

struct gw_cascade {
	struct gw_chain chain;          /* the names live as long as the request */
	unsigned step;                  /* place of the current leg's model in the chain */
	bool own_logprobs;              /* the client asked for log-probabilities itself */
	const char *outcome;            /* last decision, a label of cgn_cascade_total; NULL: none yet */
	const char *why;                /* reason of that decision; NULL: none */
	bool noted;                     /* the decision on the current leg was made */
	bool doubled;                   /* the prompt is to be asked again, to calibrate the gate */
	unsigned doubled_step;          /* place of the model that is calibrated by it */
	struct calibration_curve curve; /* curve of the leg that is held; n 0: none is known */
	double error; /* probability that the last answer judged is wrong, by the curve; negative: no curve */
	struct cascade_answer answer; /* the leg that is held gave it */
	bool reading;                 /* |answer| is in use */
	struct cgn_buf held;          /* bytes of the answer */
	uint64_t booked;              /* bytes of |held| that are booked of router.max_inflight_body */
	double confidence;            /* confidence of the last answer that was judged */
	double threshold;             /* least confidence that passed for it */
	double doubt;                 /* cascade_doubt of that answer */
	unsigned tokens;              /* tokens read of that answer */
	struct gw_wasted wasted[CASCADE_MODELS];
	struct cascade_group group; /* group of the leg that is held */
	bool grouped;               /* |group| is set */
	bool strips;                /* |strip| is in use */
	struct cascade_strip strip;
};
