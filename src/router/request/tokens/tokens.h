/* SPDX-License-Identifier: Apache-2.0 */
/* tokens: from a body to the chain of digests of its prompt. The blocks are of tokens where an engine or the
 * model's own files tell them in time, else of bytes. */
#pragma once
#include "base/json/json.h"
#include "router/request/request/request.h"

enum gw_tokens_mode { GW_BYTES, GW_ENGINE, GW_FILE, GW_TOKENS_MODES };
const char *gw_tokens_text(enum gw_tokens_mode mode);
/* Return whether the model's blocks are made of tokens or of bytes, and who makes the tokens. |row|: of the
 * configuration, may be NULL; |m|: of the cluster, may be NULL. */
enum gw_tokens_mode gw_tokens_mode_of(const struct gw_model *row, const struct view_model *m);

CGN_RC gw_tokens_open(struct gw_worker *w, size_t cache_bytes, struct cgn_err *err);
void gw_tokens_close(struct gw_worker *w);
/* Forget the known facts of the model's engines, and find its series again when it comes back. */
void gw_tokens_forget(struct gw_worker *w, struct cgn_str model);
/* Make the chain of the body that r->prompt.facts describe. Either the chain is there on return, or the
 * request is in GW_TOKENS or GW_READ, which come back to GW_ROUTE with the chain. */
void gw_tokens_start(struct gw_req *r, const struct gw_model *row);
/* The state GW_TOKENS. */
enum gw_step gw_tokens(struct gw_req *r);
/* Cancel work under way; safe when there is none. */
void gw_tokens_end(struct gw_req *r);
