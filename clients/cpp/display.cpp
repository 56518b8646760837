#include "display.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>

namespace client {
namespace {

using specgate::v1::GenerateStreamResponse;

// NO_COLOR and FORCE_COLOR decide before the terminal does.
bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// None where the target was alone.
const std::map<int, std::string> kColors = {{specgate::v1::TOKEN_SOURCE_ACCEPTED, "32"},
                                            {specgate::v1::TOKEN_SOURCE_RECOVERED, "33"},
                                            {specgate::v1::TOKEN_SOURCE_BONUS, "36"},
                                            {specgate::v1::TOKEN_SOURCE_ACCEPTED_LAYER_SKIP, "92"},
                                            {specgate::v1::TOKEN_SOURCE_ACCEPTED_SUFFIX, "35"}};

std::string colored(const std::string& text, int source) {
  const auto color = kColors.find(source);
  return text.empty() || color == kColors.end() ? text : "\x1b[" + color->second + "m" + text + "\x1b[0m";
}

// A model's output must not steer a terminal: control characters of ASCII and, in UTF-8 behind 0xC2, of Latin-1.
std::string harmless(const std::string& text) {
  std::string shown;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto next = static_cast<unsigned char>(at + 1 < text.size() ? text[at + 1] : 0);
    const bool latin = byte == 0xc2 && next >= 0x80 && next <= 0x9f;
    const bool control = latin || byte == 0x7f || (byte < 0x20 && byte != '\t' && byte != '\n');
    shown += control ? "\xef\xbf\xbd" : text.substr(at, 1);
    at += latin;
  }
  return shown;
}

std::string percent(uint32_t part, uint32_t whole) {
  return std::to_string((200ull * part + whole) / (2ull * std::max(whole, 1u))) + "%";
}

std::string reason_of(const GenerateStreamResponse& last) {
  switch (last.finish_reason()) {
    case specgate::v1::FINISH_REASON_STOP: return "stop";
    case specgate::v1::FINISH_REASON_LENGTH: return "length";
    default: return "something that this client does not know";
  }
}

}  // namespace

Display::Display(bool ids, bool several)
    : ids_(ids),
      several_(several),
      terminal_(isatty(STDOUT_FILENO) == 1),
      color_(!is_set("NO_COLOR") && (is_set("FORCE_COLOR") || terminal_)) {}

bool Display::show(const GenerateStreamResponse& delta) {
  Choice& choice = choices_.try_emplace(delta.index(), Choice{delta.index() > 0 ? "\n" : ""}).first->second;
  choice.text += painted(delta);
  if (delta.finish_reason() != specgate::v1::FINISH_REASON_UNSPECIFIED) {
    choice.text += "\n\n" + summary(delta) + "\n";
    choice.finished = true;
  }
  for (auto next = choices_.find(turn_); next != choices_.end(); next = choices_.find(++turn_)) {
    std::cout << next->second.text;
    next->second.text.clear();
    if (!next->second.finished) break;
  }
  return static_cast<bool>(std::cout.flush());
}

void Display::show_rest() {
  for (const auto& [index, choice] : choices_) std::cout << choice.text;
  std::cout.flush();
}

// A delta is what one verdict committed: accepted draft tokens, then one of the target's own. Its text cannot be taken
// apart without the tokenizer, so it takes the colour of its end.
std::string Display::painted(const GenerateStreamResponse& delta) const {
  const auto source_at = [&](int at) { return color_ && at >= 0 && at < delta.sources_size() ? delta.sources(at) : 0; };
  if (!ids_) return colored(terminal_ ? harmless(delta.text()) : delta.text(), source_at(delta.sources_size() - 1));
  std::string shown;
  for (int at = 0; at < delta.token_ids_size(); ++at) {
    shown += colored(std::to_string(delta.token_ids(at)) + " ", source_at(at));
  }
  return shown;
}

std::string Display::summary(const GenerateStreamResponse& last) const {
  const auto& stats = last.stats();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double tokens = stats.completion_tokens();
  std::ostringstream line;
  line << std::fixed;
  if (several_) line << "choice " << last.index() << " · ";
  line << stats.completion_tokens() << " tokens · " << std::setprecision(1) << tokens / seconds << " tokens/s · ";
  if (stats.drafted_tokens() == 0) {
    line << "nothing drafted";
  } else {
    line << "acceptance " << percent(stats.accepted_tokens(), stats.drafted_tokens());
  }
  line << " · " << std::setprecision(2) << tokens / std::max(stats.target_forwards(), 1u)
       << " tokens per target forward · solo " << percent(stats.solo_tokens(), stats.completion_tokens())
       << " · finished by " << reason_of(last) << " · seed " << stats.seed();
  return line.str();
}

}  // namespace client
