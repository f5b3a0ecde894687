/* SPDX-License-Identifier: Apache-2.0 */
/* engineview, inside: what its parts tell each other. */
#pragma once
#include "joint/node/engineview/engineview.h"

/* A check of the engine begins. */
void engineview_asked(struct engineview *v);
/* A check of the engine has ended. CGN_FINE, CGN_TOO_LARGE: with an answer, whatever it says; CGN_NO_MEMORY: the engine was
 * not asked. */
void engineview_answered(struct engineview *v, enum cgn_code code);
void engineview_load_init(struct engineview *v);
CGN_RC engineview_models_init(struct engineview *v, const struct config_engine *ce, struct cgn_err *err);
/* The engine became ready and may serve other models than before. */
void engineview_models_reset(struct engineview *v);
/* Ask the engine for its models, unless they are known. */
void engineview_models_ask(struct engineview *v);
/* Ask again when they are known for two seconds and not configured: the engine may load and unload LoRAs while it
 * runs. An answer that cannot be used changes nothing; after two empty lists in a row the models are unknown. */
void engineview_models_ask_again(struct engineview *v);
/* named.c */
void engineview_named_init(struct engineview *v, const struct config_engine *ce);
void engineview_named_ask(struct engineview *v);   /* Ask, if it is due. */
void engineview_named_reset(struct engineview *v); /* The engine became ready: it may be another one. */
void engineview_named_moved(
	struct engineview *v); /* The engine may be another one: ask at the next reading. */
void engineview_named_stop(struct engineview *v);
void engineview_named_close(struct engineview *v);
