#include "options.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <vector>

namespace client {

const char* const kUsage = R"(usage: generate [flags] "PROMPT"

  --server HOST:PORT       address of the gRPC API (127.0.0.1:8001)
  --max-tokens N           the most tokens to emit
  --min-tokens N           the fewest, before anything but the limit may end the text
  --temperature T          0 is greedy; the server's default is 1
  --top-k N, --top-p P     keep the likeliest tokens
  --seed N                 the same seed gives the same text
  --stop TEXT              end before this text; repeatable
  --n N                    so many choices, shown one after the other
  --json-schema FILE       the answer is JSON that this schema takes
  --regex PATTERN          the whole answer matches this pattern
  --gamma N                draft tokens a round, under the gate auto at the most; 0 is the target alone
  --chat                   PROMPT is what a user says; the target's chat template puts it in its words
  --token-ids              print token ids, each in the colour of its own source, and take the prompt as ids
  --timeout S              give up after so many seconds
  --tls                    encrypt, trusting the system's roots; implied by the flags below
  --tls-ca FILE            who signed the server's certificate
  --tls-certificate FILE, --tls-key FILE
                           show a certificate of our own
  --tls-server-name NAME   the name in the server's certificate, where it is not HOST

The variable SPECGATE_KEY holds the key, where the server asks for one.)";

namespace {

constexpr double kMaxTimeoutS = 1e6;

template <typename T>
T number(const std::string& text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return value;
  const std::string whole = "whole number of " + std::to_string(8 * sizeof(T)) + " bits";
  throw std::invalid_argument("'" + text + "' is no " + (std::is_integral_v<T> ? whole : "number"));
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw std::invalid_argument("'" + path + "' cannot be read");
  return text.str();
}

std::chrono::duration<double> seconds_of(const std::string& text) {
  const double seconds = number<double>(text);
  if (seconds > 0 && seconds <= kMaxTimeoutS) return std::chrono::duration<double>(seconds);
  throw std::invalid_argument("'" + text + "' is outside (0, 1000000] seconds");
}

specgate::v1::GenerationParams& params(Options& options) { return *options.request.mutable_params(); }

specgate::v1::SamplingParams& sampling(Options& options) { return *params(options).mutable_sampling(); }

specgate::v1::Grammar& grammar(Options& options) {
  if (params(options).has_grammar()) throw std::invalid_argument("give one of --json-schema and --regex");
  return *params(options).mutable_grammar();
}

using Text = const std::string&;
using Setter = void (*)(Options&, Text);

const std::map<std::string, Setter> kFlags = {
    {"--server", [](Options& to, Text value) { to.server = value; }},
    {"--max-tokens", [](Options& to, Text value) { params(to).set_max_tokens(number<uint32_t>(value)); }},
    {"--min-tokens", [](Options& to, Text value) { params(to).set_min_tokens(number<uint32_t>(value)); }},
    {"--temperature", [](Options& to, Text value) { sampling(to).set_temperature(number<float>(value)); }},
    {"--top-k", [](Options& to, Text value) { sampling(to).set_top_k(number<uint32_t>(value)); }},
    {"--top-p", [](Options& to, Text value) { sampling(to).set_top_p(number<float>(value)); }},
    {"--seed", [](Options& to, Text value) { params(to).set_seed(number<uint64_t>(value)); }},
    {"--stop", [](Options& to, Text value) { params(to).add_stop(value); }},
    {"--n", [](Options& to, Text value) { params(to).set_n(number<uint32_t>(value)); }},
    {"--json-schema", [](Options& to, Text value) { grammar(to).set_json_schema(text_of(value)); }},
    {"--regex", [](Options& to, Text value) { grammar(to).set_regex(value); }},
    {"--gamma", [](Options& to, Text value) { params(to).set_gamma(number<uint32_t>(value)); }},
    {"--timeout", [](Options& to, Text value) { to.timeout = seconds_of(value); }},
    {"--tls-ca", [](Options& to, Text value) { to.tls = true, to.tls_ca = text_of(value); }},
    {"--tls-certificate", [](Options& to, Text value) { to.tls = true, to.tls_certificate = text_of(value); }},
    {"--tls-key", [](Options& to, Text value) { to.tls = true, to.tls_key = text_of(value); }},
    {"--tls-server-name", [](Options& to, Text value) { to.tls = true, to.tls_server_name = value; }},
};
const std::map<std::string, bool Options::*> kSwitches = {
    {"--chat", &Options::chat},
    {"--token-ids", &Options::token_ids},
    {"--tls", &Options::tls},
    {"--help", &Options::help},
};

// Sets something from what the command line says; an error says the name of it.
template <typename Setting>
void set(const std::string& name, Setting setting) {
  try {
    setting();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(name + ": " + error.what());
  }
}

void set_prompt(Options& options, std::string prompt) {
  if (options.chat) {
    auto& message = *options.request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(prompt);
  } else if (options.token_ids) {
    std::replace(prompt.begin(), prompt.end(), ',', ' ');
    std::istringstream words(prompt);
    auto& ids = *options.request.mutable_token_ids();
    for (std::string word; words >> word;) ids.add_ids(number<uint32_t>(word));
  } else {
    options.request.set_text(prompt);
  }
}

}  // namespace

Options parse(int argc, char** argv) {
  Options options;
  std::vector<std::string> prompts;
  const std::vector<std::string> args(argv + 1, argv + argc);
  for (auto arg = args.begin(); arg != args.end(); ++arg) {
    const auto equals = arg->find('=');
    const std::string name = arg->substr(0, equals);
    if (const auto found = kSwitches.find(*arg); found != kSwitches.end()) {
      options.*(found->second) = true;
    } else if (kFlags.count(name) && equals != std::string::npos) {
      set(name, [&] { kFlags.at(name)(options, arg->substr(equals + 1)); });
    } else if (kFlags.count(name)) {
      if (++arg == args.end()) throw std::invalid_argument(name + " needs a value");
      set(name, [&] { kFlags.at(name)(options, *arg); });
    } else if (*arg == "--") {
      prompts.insert(prompts.end(), arg + 1, args.end());
      break;
    } else if (arg->size() > 1 && arg->front() == '-') {
      throw std::invalid_argument("unknown flag " + name + "; a prompt that begins so stands after --");
    } else {
      prompts.push_back(*arg);
    }
  }
  if (options.help) return options;
  if (prompts.size() != 1) throw std::invalid_argument("give one PROMPT");
  if (options.chat && options.token_ids) throw std::invalid_argument("give one of --chat and --token-ids");
  set("PROMPT", [&] { set_prompt(options, prompts.front()); });
  return options;
}

std::shared_ptr<grpc::Channel> channel_to(const Options& options) {
  if (!options.tls) return grpc::CreateChannel(options.server, grpc::InsecureChannelCredentials());
  grpc::ChannelArguments arguments;
  if (!options.tls_server_name.empty()) arguments.SetSslTargetNameOverride(options.tls_server_name);
  const auto credentials = grpc::SslCredentials({options.tls_ca, options.tls_key, options.tls_certificate});
  return grpc::CreateCustomChannel(options.server, credentials, arguments);
}

}  // namespace client
