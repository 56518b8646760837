#include "errors.h"

#include <cstddef>
#include <iterator>
#include <sstream>

#include "google_rpc.pb.h"

namespace client {
namespace {

const char* const kCodes[] = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
                              "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
                              "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
                              "UNAUTHENTICATED"};

struct Details {
  google::rpc::ErrorInfo info;
  google::rpc::BadRequest bad;
  google::rpc::RetryInfo retry;
  bool has_retry = false;
};

// Reads the trailer grpc-status-details-bin; a proxy's own error has none. They come in any order.
Details details_of(const grpc::Status& status) {
  Details found;
  google::rpc::Status sent;
  if (!sent.ParseFromString(status.error_details())) return found;
  for (const auto& packed : sent.details()) {
    packed.UnpackTo(&found.info);
    packed.UnpackTo(&found.bad);
    found.has_retry |= packed.UnpackTo(&found.retry);
  }
  return found;
}

}  // namespace

std::string describe(const grpc::Status& status) {
  const auto code = static_cast<size_t>(status.error_code());
  const Details details = details_of(status);
  const auto& delay = details.retry.retry_delay();
  std::ostringstream line;
  line << (code < std::size(kCodes) ? kCodes[code] : "ERROR");
  if (!details.info.reason().empty()) line << ", reason " << details.info.reason();
  if (details.bad.field_violations_size() > 0) line << ", field " << details.bad.field_violations(0).field();
  if (details.has_retry) line << ", retry in " << static_cast<double>(delay.seconds()) + delay.nanos() / 1e9 << " s";
  line << ": " << status.error_message();
  return line.str();
}

}  // namespace client
