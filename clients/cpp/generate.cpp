// Streams one generation: generate --server 127.0.0.1:8001 --max-tokens 64 --temperature 0 "def fib("
// Leaves with 0, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C.
#include <grpcpp/client_context.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "display.h"
#include "errors.h"
#include "options.h"
#include "specgate/v1/generation_service.grpc.pb.h"

namespace {

// Cancels a call on Ctrl-C, from a thread: a signal handler may not call into gRPC. A second Ctrl-C ends the process.
// To be made before the channel, whose threads then leave the signal to this one.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(grpc::ClientContext& context) {
    sigemptyset(&interrupt_);
    sigaddset(&interrupt_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt_, nullptr);
    waiting_ = std::thread([this, &context] {
      int signal = 0;
      for (int times = 0; sigwait(&interrupt_, &signal) == 0 && !done_; ++times) {
        if (times > 0) std::_Exit(130);
        context.TryCancel();
      }
    });
  }
  ~CancelOnInterrupt() {
    done_ = true;
    pthread_kill(waiting_.native_handle(), SIGINT);
    waiting_.join();
  }
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

 private:
  sigset_t interrupt_{};
  std::atomic<bool> done_{false};
  std::thread waiting_;
};

// Prints the deltas as they come; returns the exit code.
int stream(const client::Options& options) {
  using std::chrono::system_clock;
  grpc::ClientContext context;
  if (options.timeout) {
    context.set_deadline(system_clock::now() + std::chrono::duration_cast<system_clock::duration>(*options.timeout));
  }
  // On a command line everybody on the machine could read it.
  const char* key = std::getenv("SPECGATE_KEY");
  if (key != nullptr && *key != '\0') {
    for (const char* at = key; *at != '\0'; ++at) {
      // gRPC itself would end the process.
      if (*at <= ' ' || *at > '~') {
        std::cerr << "generate: SPECGATE_KEY: may hold visible ASCII alone\n";
        return 2;
      }
    }
    context.AddMetadata("authorization", std::string("Bearer ") + key);
  }
  const CancelOnInterrupt interrupt(context);
  const auto stub = specgate::v1::GenerationService::NewStub(client::channel_to(options));
  client::Display display(options.token_ids, options.request.params().n() > 1);
  const auto reader = stub->GenerateStream(&context, options.request);
  specgate::v1::GenerateStreamResponse delta;
  while (reader->Read(&delta)) {
    // Whoever read our output has left. The server frees both sessions as soon as it hears of it.
    if (!display.show(delta)) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (status.ok()) return 0;
  display.show_rest();
  const bool cancelled = status.error_code() == grpc::StatusCode::CANCELLED;
  std::cerr << '\n' << (cancelled ? "cancelled" : client::describe(status)) << '\n';
  return cancelled ? 130 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // A pipe that closes is an error of the write, not the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  client::Options options;
  try {
    options = client::parse(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::cerr << "generate: " << error.what() << "\n\n" << client::kUsage << '\n';
    return 2;
  }
  if (options.help) {
    std::cout << client::kUsage << '\n';
    return 0;
  }
  return stream(options);
}
