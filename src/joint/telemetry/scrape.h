/* SPDX-License-Identifier: Apache-2.0 */
/* scrape: cognitora.v1.Metrics, the program's metrics over its gRPC port. */
#pragma once
#include "io/grpc/grpc.h"

#define SCRAPE_PATH "/cognitora.v1.Metrics/Scrape"
/* For a program's table of methods: {SCRAPE_PATH, scrape_on_call}. Answers with what telemetry_text gives at
 * that instant. */
void scrape_on_call(struct grpc_call *c, void *server_user);
