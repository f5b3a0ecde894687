/* SPDX-License-Identifier: Apache-2.0 */
/* states: the handlers of the states that plan and run the legs of an answer. */
#pragma once
#include "router/request/request/request.h"

enum gw_step gw_route(struct gw_req *r);    /* route.c */
enum gw_step gw_queue(struct gw_req *r);    /* queue.c */
enum gw_step gw_prefill(struct gw_req *r);  /* prefill.c */
enum gw_step gw_gate(struct gw_req *r);     /* gate.c */
enum gw_step gw_dispatch(struct gw_req *r); /* wait.c */
enum gw_step gw_stream(struct gw_req *r);   /* wait.c */
