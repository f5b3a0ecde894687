/* SPDX-License-Identifier: Apache-2.0 */
/* ollama: a request of Ollama's API becomes one of OpenAI's once its body is there, and is planned, limited and
 * counted like any other; its answer becomes Ollama's on the way to the client. */
#pragma once
#include "router/request/request/request.h"

/* For the routes GW_OLLAMA and GW_OLLAMA_SHOW, whose body r->prompt.facts describe: find the model, then turn
 * the body into one for an engine, which gw_ollama_take makes the request's. False: the request is answered
 * without an engine, or refused, and has left GW_ROUTE. */
bool gw_ollama_begin(struct gw_req *r);
void gw_ollama_run(struct gw_req *r); /* Any thread, as gw_body_work's |run|. */
bool gw_ollama_take(struct gw_req *r);
void gw_ollama_drop(struct gw_req *r);
/* Answer the routes that have no body: the lists of models, the version, and unsupported routes. */
enum gw_step gw_ollama_reply(struct gw_req *r);

/* ---- while an engine answers: only if r->answer.ollama is set ---- */

/* The engine's head came, with the Content-Encoding |encoding|: send the client's, if its lines begin now. */
void gw_ollama_head(struct gw_req *r, struct cgn_str encoding);
void gw_ollama_feed(struct gw_req *r, struct cgn_str data);
/* Send the rest and end the answer. */
void gw_ollama_end(struct gw_req *r);
/* The engine's answer broke off: send the error and end the answer. */
void gw_ollama_cut(struct gw_req *r, const char *why);
