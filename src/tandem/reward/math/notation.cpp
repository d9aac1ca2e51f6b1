// SPDX-License-Identifier: Apache-2.0
#include "tandem/reward/math/notation.h"

#include <optional>

#include "tandem/base/strings.h"
#include "tandem/reward/math/relation.h"
#include "tandem/reward/math/spelled.h"
#include "tandem/text/unicode.h"

namespace tandem::reward {

using text::Regex;

namespace {

// The brackets of tuples, intervals and sets; the braces of LaTeX only group.
bool opens(const std::string& text, size_t at) {
  return text[at] == '(' || text[at] == '[' || (text[at] == '{' && at > 0 && text[at - 1] == '\\');
}
bool closes(const std::string& text, size_t at) {
  return text[at] == ')' || text[at] == ']' || (text[at] == '}' && at > 0 && text[at - 1] == '\\');
}

// Characters for which LaTeX has commands.
std::string with_commands(std::string s) {
  static constexpr Row<std::string_view> kSigns[] = {
      {"\xE2\x88\x92", "-"},           {"\xC2\xB0", "\\degree "},      {"\xCF\x80", "\\pi "},          {"\xC3\x97", "\\times "},
      {"\xE2\x88\x9E", "\\infty "},    {"\xC2\xB1", "\\pm "},          {"\xE2\x88\x93", "\\mp "},      {"\xC3\xB7", "\\div "},
      {"\xC2\xB7", "\\cdot "},         {"\xE2\x8B\x85", "\\cdot "},    {"\xE2\x88\x85", "\\emptyset "}, {"\xE2\x84\x9D", "\\mathbb{R}"},
      {"\xE2\x84\xA4", "\\mathbb{Z}"}, {"\xE2\x84\x95", "\\mathbb{N}"}, {"\xE2\x84\x9A", "\\mathbb{Q}"}, {"\xE2\x84\x82", "\\mathbb{C}"},
      {"\xE2\x88\x88", "\\in "},       {"\xE2\x88\xAA", "\\cup "},     {"\xE2\x88\xA9", "\\cap "},     {"\xE2\x80\xA6", "\\ldots "},
      {"\xC2\xB2", "^2"},              {"\xC2\xB3", "^3"},             {"\xC2\xBD", "\\frac{1}{2}"},   {"\xC2\xBC", "\\frac{1}{4}"},
      {"\xC2\xBE", "\\frac{3}{4}"},    {"\xE2\x85\x93", "\\frac{1}{3}"}, {"\xE2\x85\x94", "\\frac{2}{3}"}, {"\xE2\x82\xAC",
      " \\text{euro} "},
      {"\xC2\xA3", " \\text{sterling} "}, {"\xC2\xA0", " "},           {"\xE2\x80\x89", " "},          {"\xE2\x88\x96", "\\setminus "},
      {"\xE2\x89\x88", "\\approx "},   {"\xCE\xB8", "\\theta "},       {"\xE2\x88\xA8", "\\lor "},      {"\xE2\x88\xA7", "\\land "},
      {"\xC2\xA2", " \\text{cent} "},  {"\xC2\xBA", "\\degree "},      {"\xE2\x81\x84", "/"},           {"\xE2\x80\x93", "-"},
      {"\xE2\x88\x9B", "\\sqrt[3]"},   {"\xE2\x88\x9C", "\\sqrt[4]"},  {"\xE2\x80\xAF", " "},           {"\xE2\x81\x9F", " "},
      {"\xE3\x80\x80", " "},           {"\xE2\x80\x82", " "},          {"\xE2\x80\x83", " "},           {"\xE2\x80\x87", " "},
      {"\xE2\x80\x88", " "},           {"\xE2\x80\x8A", " "},          {"\xE2\x80\x8B", ""},            {"\xE2\x81\xA0", ""},
      {"\xEF\xBB\xBF", ""},            {"\xC2\xAD", ""},               {"\xE2\x80\x99", "'"}};
  if (std::all_of(s.begin(), s.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return s;
  static const TrustedRegex kRoot("\xE2\x88\x9A(?:(\\d+)|)");
  s = kRoot.replaced_in(s, [](const Regex::Scan& root) { return "\\sqrt " + (root.text(1).empty() ? "" : "{" + root.text(1) + "}"); });
  for (const auto& [sign, command] : kSigns) s = replaced(s, sign, command);
  return s;
}

// The words of \text: marked, but for those that join a list, and single letters that stand for themselves.
std::string marked_words(const std::string& inner, bool is_font, bool behind_a_number) {
  static const std::vector<std::string_view> kFunctions = {"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "ln",
      "log", "exp"};
  std::string out = " ";
  for (size_t at = 0; at < inner.size();) {
    if (inner[at] == '$' || inner[at] == '~') {
      out += ' ', ++at;
      continue;
    }
    if (inner[at] == '\\' && at + 1 < inner.size()) {
      const size_t begin = at++;
      while (at < inner.size() && is_letter(inner[at])) ++at;
      out.append(inner, begin, std::max(at, begin + 2) - begin);
      at = std::max(at, begin + 2);
      continue;
    }
    if (!is_letter(inner[at])) {
      out += inner[at++];
      continue;
    }
    size_t end = at;
    while (end < inner.size() && is_letter(inner[end])) ++end;
    std::string word = inner.substr(at, end - at);
    if ((word == "a" || word == "p") && inner.substr(end).starts_with(".m")) word += "m", end += 2;
    const bool joins = word == "and" || word == "or";
    const bool is_unit = behind_a_number && !(is_font && (word == "i" || word == "e" || word == "x" || word == "y"));
    if (is_font && std::find(kFunctions.begin(), kFunctions.end(), word) != kFunctions.end()) out += "\\" + word + " ";
    else if (!joins && (word.size() > 1 || is_unit)) out += std::string(1, kWord) + word;
    else out += word;
    at = end;
  }
  return trimmed(out).size() > 1 || behind_a_number ? out + " " : trimmed(out);
}

constexpr Row<std::string_view> kRenamed[] = {
    {"dfrac", "\\frac"},  {"tfrac", "\\frac"},   {"cfrac", "\\frac"},     {"dbinom", "\\binom"},       {"tbinom", "\\binom"},
    {"lbrace", "\\{"},    {"rbrace", "\\}"},     {"lbrack", "["},         {"rbrack", "]"},             {"langle", "("},
    {"rangle", ")"},      {"lparen", "("},       {"rparen", ")"},         {"lvert", "|"},              {"rvert", "|"},
    {"vert", "|"},        {"mid", "|"},          {"varnothing", "\\emptyset "}, {"O", "\\emptyset "},  {"degree", "\x07"},
    {"circ", "\x07"},     {"colon", ":"},        {"ast", "*"},            {"quad", " "},               {"qquad", " "},
    {"enspace", " "},     {"thinspace", " "},    {"space", " "},          {"hfill", " "},              {"R", "\\mathbb{R}"},
    {"lt", "<"},          {"gt", ">"},           {"cr", "\x01"},          {"dots", "\\ldots "},        {"cdots", "\\ldots "},
    {"backslash", "\\setminus "}, {"smallsetminus", "\\setminus "}, {"dotsc", "\\ldots "}, {"bmod", " \x05mod "}, {"mod", " \x05mod "},
    {"pmod", " \x05mod "}, {"vee", "\\lor "}, {"wedge", "\\land "}, {"cent", " \x05""cent "},
    {"textcent", " \x05""cent "}, {"pounds", " \x05sterling "}};

bool is_layout(std::string_view name) {
  return is_one_of(name, {"left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "Biggl",
      "Biggr", "bigm", "middle", "displaystyle", "textstyle", "scriptstyle", "scriptscriptstyle", "limits", "nolimits", "bf", "rm", "it",
      "sf", "tt", "em", "bfseries", "boldmath", "tiny", "small", "normalsize", "large", "Large", "LARGE", "huge", "Huge", "hline",
      "strut", "mathstrut", "nobreak", "allowbreak", "centering", "noindent"});
}
bool drops_argument(std::string_view name) {
  return is_one_of(name, {"color", "textcolor", "colorbox", "hspace", "vspace", "phantom", "hphantom", "vphantom", "tag", "label",
      "hskip", "kern"});
}
bool unwraps(std::string_view name) {
  return is_one_of(name, {"boldsymbol", "bm", "pmb", "mathit", "mathsf", "mathtt", "mathnormal", "underline", "boxed", "fbox",
      "framebox", "ensuremath", "smash", "mathstrut", "emph", "hbox", "mathbin", "mathrel", "mathord", "underbrace"});
}
bool is_text(std::string_view name) {
  return is_one_of(name, {"text", "mbox", "textbf", "textit", "textnormal", "textrm", "textsf", "texttt"});
}
bool is_font(std::string_view name) { return is_one_of(name, {"mathrm", "operatorname", "mathbf"}); }

bool ends_a_number(const std::string& before) {
  const size_t last = before.find_last_not_of(" \t\n~");
  if (last == std::string::npos) return false;
  const char c = before[last];
  return is_digit(c) || c == '}' || c == ')' || c == kDegree || before.substr(0, last + 1).ends_with("\\pi");
}

// Reads commands of layout away, and those that are another name of one by their usual name.
class Layout {
 public:
  explicit Layout(std::string text) : text_(std::move(text)) {}

  std::string read() {
    in_table_ = text_.find("\\begin{") != std::string::npos;
    while (at_ < text_.size()) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) command();
      else if (text_[at_] == '$' || text_[at_] == '\\') ++at_;
      else if (text_[at_] == '~') out_ += ' ', ++at_;
      else out_ += text_[at_++];
    }
    return std::move(out_);
  }

 private:
  void command() {
    const char next = text_[at_ + 1];
    if (!is_letter(next)) return sign(next);
    size_t end = at_ + 1;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    const std::string name = text_.substr(at_ + 1, end - at_ - 1);
    const std::optional<std::string> group = group_at(end);
    if (is_layout(name)) {
      at_ = end;
      if ((name == "left" || name == "right") && end < text_.size() && text_[end] == '.') ++at_;  // an invisible bracket
    } else if (drops_argument(name) && group) {
      at_ = group_end_;
    } else if ((unwraps(name) || is_text(name) || is_font(name)) && group) {
      // The text within is read in its turn, in place.
      const bool words = is_text(name) || is_font(name);
      const std::string inner = words ? marked_words(*group, is_font(name),
          ends_a_number(out_) || out_.ends_with("\\frac{") || out_.ends_with("}{")) : *group;
      // A list or a fraction that is wrapped needs no braces; under an exponent a group stays one.
      const bool grouped = !words && !out_.empty() && (out_.back() == '^' || out_.back() == '_' || out_.ends_with("\\frac"));
      text_.replace(at_, group_end_ - at_, grouped ? "{" + inner + "}" : inner);
      if (++num_unwrapped_ > kMostWrapped) {  // no answer of anybody; the rest stays as it is
        out_.append(text_, at_);
        at_ = text_.size();
      }
    } else if (unwraps(name) || is_font(name)) {  // \boldsymbol 7
      at_ = end;
    } else if (name == "mathbb" || name == "Bbb") {
      const size_t letter = std::min(text_.find_first_not_of(' ', end), text_.size());
      const bool has_letter = !group && letter < text_.size() && is_letter(text_[letter]);
      out_ += "\\mathbb{" + (group ? trimmed(*group) : has_letter ? text_.substr(letter, 1) : "") + "}";
      at_ = group ? group_end_ : has_letter ? letter + 1 : end;
    } else if (name == "pmod" && group) {
      out_ += std::string(" ") + kWord + "mod " + *group;
      at_ = group_end_;
    } else if (const auto* other = value_of(kRenamed, name)) {
      out_ += *other;
      at_ = end;
      if (name == "cr") row_end();
    } else {
      out_.append(text_, at_, end - at_);
      at_ = end;
    }
  }

  void sign(char next) {
    at_ += 2;
    switch (next) {
      case ',': case ';': case ':': case '>':  // `5\,m` keeps its unit apart
        if (at_ < text_.size() && (is_letter(text_[at_]) || text_[at_] == '\\')) out_ += ' ';
        return;
      case '!': case '(': case ')': case '[': case ']': case '-': case '/': return;
      case ' ': case '\n': case '\t': out_ += ' '; return;
      case '$': out_ += kMoney; return;
      case '%': out_ += '%'; return;
      case '#': case '&': case '_': out_ += next; return;
      case '\\':
        if (in_table_) {
          out_ += kRowBreak;
          row_end();
        } else {
          --at_;  // a backslash that was escaped once too often
          if (at_ + 1 == text_.size()) ++at_;
        }
        return;
      default: out_ += '\\', out_ += next;
    }
  }

  // Behind a row: a star and a distance.
  void row_end() {
    if (at_ < text_.size() && text_[at_] == '*') ++at_;
    const size_t open = text_.find_first_not_of(" \n", at_);
    if (open == std::string::npos || text_[open] != '[') return;
    static const TrustedRegex kDistance(R"(^\[\s*-?[\d.]*\s*(?:pt|ex|em|mm|cm|in|\\[a-z]+)\s*\]$)");
    const size_t close = text_.find(']', open);
    if (close != std::string::npos && close - open < 20 && kDistance.found_in(text_.substr(open, close + 1 - open))) at_ = close + 1;
  }

  // What the group behind `end` holds, if one begins there.
  std::optional<std::string> group_at(size_t end) {
    const size_t open = text_.find_first_not_of(' ', end);
    if (open == std::string::npos || text_[open] != '{') return std::nullopt;
    group_end_ = group_end(text_, open);
    if (group_end_ == std::string::npos) return std::nullopt;
    return text_.substr(open + 1, group_end_ - open - 2);
  }

  static constexpr int kMostWrapped = 200;
  std::string text_, out_;
  size_t at_ = 0, group_end_ = 0;
  int num_unwrapped_ = 0;
  bool in_table_ = false;
};

// 1{,}000 and 1,\!000 are numbers wherever they stand: nobody writes the comma of a list so. 1\,000 and 1 000 are, too.
std::string without_tight_commas(const std::string& text) {
  static const TrustedRegex kTight(R"((?<=\d)(?:\{,\}|,\\!\s?)(?=\d{3}(?!\d)))");
  return substituted(kTight, text, "");
}
// 1'234'567 and 1.234.567; with one point it is a decimal.
std::string without_marks_in_numbers(const std::string& text) {
  static const TrustedRegex kMarks(R"((?<![\d.,'])\d{1,3}(?:(?:'\d{3})++|(?:\.\d{3}){2,}+)(?![\d.,']))");
  return kMarks.replaced_in(text, [](const Regex::Scan& number) { return replaced(replaced(number.text(), "'", ""), ".", ""); });
}
std::string without_gaps_in_numbers(const std::string& text) {
  static const TrustedRegex kGap(R"((?<![\d.,])(\d{1,3}(?: \d{3})++)(?![\d/]|[.,]\d))");
  return kGap.replaced_in(text, [](const Regex::Scan& number) { return replaced(number.text(1), " ", ""); });
}

// `x > 1 and x < 2` as 1 < x < 2: of two bounds, `and` is no list of both.
std::string with_both_bounds(const std::string& text) {
  static const TrustedRegex kAnd(R"((?<=[\d)\]}\sA-Za-z])\band\b(?=[\s\d(\\$-]))");
  if (text.find("and") == std::string::npos) return text;
  Regex::Scan scan(kAnd, text);
  if (!scan.next()) return text;
  const auto left = read_relation(trimmed(text.substr(0, scan.group().begin))),
             right = read_relation(trimmed(text.substr(scan.group().end)));
  if (!left || !right || left->signs.size() != 1 || right->signs.size() != 1) return text;
  const auto name_of = [](const Relation& r) { return is_symbol(r.terms[0]) ? r.terms[0] : is_symbol(r.terms[1]) ? r.terms[1] : ""; };
  const std::string name = name_of(*left);
  const auto a = interval_of(*left), b = interval_of(*right);
  if (name.empty() || name_of(*right) != name || !a || !b || a->low.empty() == b->low.empty()) return text;
  const Interval& low = a->low.empty() ? *b : *a;
  const Interval& high = a->low.empty() ? *a : *b;
  return low.low + (low.has_low ? kAtMost : kLess) + name + (high.has_high ? kAtMost : kLess) + high.high;
}

// What is written with letters or signs of the keyboard in place of commands.
std::string with_usual_signs(std::string s) {
  static const TrustedRegex kTimes(R"((?<=\d)\s*[xX]\s*(?=10\^)|(?<=\d)\s+[xX]\s+(?=\d))"),
      kPlusMinus(R"((?:^|(?<==))\s*+\+-(?=[\s\d\\(A-Za-z]))"),
      kUnion(R"((?<=[)\]])\s*+U\s*+(?=[(\[]))"),
      kDots(R"(,\s*+\.\.\.)"),
      kUnequal(R"(\\not\s*+(?:=|\\equal))"),
      kMoneyOfTheUs(R"(\b(?:US|U\.S\.)(?=\s*\x06))"),
      kChoose(R"((?<![\w)}])(?:\{\s*+\})?[_^]\s*+\{?+\s*+(\d++|[a-z])\s*+\}?+\s*+\x05?C\s*+_\s*+\{?+\s*+(\d++|[a-z])(?:\s*+\})?)"),
      kOutward(R"((\[|(?<![^\s=p])\])([^()\[\],]+,[^()\[\],]+)(\[|\]))"
               R"((?=\s*(?:$|\\c[ua]p|[,.;]|and\b|or\b)))");
  s = replaced(substituted(kTimes, s, "\\times "), "+/-", "\\pm ");
  if (s.find("+-") != std::string::npos) s = substituted(kPlusMinus, s, "\\pm ");
  if (s.find('U') != std::string::npos) s = substituted(kMoneyOfTheUs, substituted(kUnion, s, "\\cup "), "");
  if (s.find("...") != std::string::npos) s = substituted(kDots, s, ",\\ldots ");
  if (s.find("\\not") != std::string::npos) s = substituted(kUnequal, s, "\\neq ");
  if (s.find("\\equiv") != std::string::npos && s.find("mod") != std::string::npos) s = replaced(s, "\\equiv", "=");
  s = replaced(s, ":=", "=");
  static const TrustedRegex kOr(R"(\\lor\b)"), kAlso(R"(\\land\b)"),
      kRelation(R"([<>=]|\\(?:le|ge|ne|in)(?:q|slant)?\b)");
  if (s.find("\\l") != std::string::npos && kRelation.found_in(s)) s = substituted(kAlso, substituted(kOr, s, " or "), " and ");
  if (s.find('C') != std::string::npos)
    s = kChoose.replaced_in(s, [](const Regex::Scan& c) { return "\\binom{" + c.text(1) + "}{" + c.text(2) + "}"; });
  if (s.find_first_of("[]") == std::string::npos) return s;
  return kOutward.replaced_in(s, [](const Regex::Scan& interval) {  // ]1,2[
    return (interval.text(1) == "]" ? "(" : "[") + interval.text(2) + (interval.text(3) == "[" ? ")" : "]");
  });
}

// `19, 46, and 82`, `(11,7)or(7,11)` and `1; 2` are lists.
std::string with_commas(const std::string& text) {
  static const TrustedRegex kJoint(R"((?:,\s*)?(?<=[\d)\]}\s,])\b(?:and|or)\b(?=[\s\d(\[{\\$-]))");
  std::string out;
  size_t begin = 0;
  for (Regex::Scan scan(kJoint, text); scan.next(); begin = scan.group().end) {
    out += trimmed(text.substr(begin, scan.group().begin - begin));
    if (!out.empty() && out.back() != ',') out += ",";
    out += " ";
  }
  static const TrustedRegex kGap(R"(,\s*+(?=,))");
  return substituted(kGap, replaced(out + text.substr(begin), ";", ","), "");
}

// 1/3 \approx 0.33 is 1/3; x \approx 11 is 11.
std::string exact_side(const std::string& text) {
  const size_t at = text.find("\\approx");
  if (at == std::string::npos) return text;
  const std::string before = trimmed(text.substr(0, at));
  return before.empty() || is_symbol(before) ? trimmed(text.substr(at + 7)) : before;
}

// A whole text in braces that only group, and a matrix set as an array in brackets.
std::string without_wrapping(std::string text) {
  while (text.size() > 1 && text[0] == '{' && group_end(text, 0) == text.size()) {
    if (trimmed(text.substr(1, text.size() - 2)).empty()) return "\\emptyset";
    text = trimmed(text.substr(1, text.size() - 2));
  }
  const size_t array = text.find("\\begin{array}");
  const size_t open = array == std::string::npos || text.find_first_not_of(' ', 1) < array ? std::string::npos : text.find('{', array + 13);
  const size_t end = open == std::string::npos ? open : group_end(text, open);
  if (end == std::string::npos) return text;
  const bool is_determinant = text[0] == '|';
  text = (is_determinant ? "\\begin{vmatrix}" : "\\begin{matrix}") +
         replaced(text.substr(end), "\\end{array}", is_determinant ? "\\end{vmatrix}" : "\\end{matrix}");
  if (text.ends_with("]") || text.ends_with(")") || text.ends_with("|")) text.pop_back();
  return text;
}

// \frac{\text{m}}{\text{s}} as m/s, and (\text{mod } 5) without its brackets.
std::string with_plain_words(const std::string& text) {
  static const TrustedRegex kRate(R"(\\frac\s*\{\s*(\x05\w+)\s*\}\s*\{\s*(\x05\w+)\s*\})"),
      kModulo(R"(\(\s*(\x05mod\s[^()]{0,40})\))");
  const std::string plain = kRate.replaced_in(text, [](const Regex::Scan& rate) { return " " + rate.text(1) + "/" + rate.text(2); });
  return substituted(kModulo, plain, " ");
}

// Other names of the empty set and of the real line, which is an interval.
std::string with_sets_named(std::string text) {
  static const TrustedRegex kNoMember(R"(\\\{\s*+\\\}|\x05empty\s++\x05set)");
  static const TrustedRegex kReals(R"((?i)^\s*+(?:\x05?all\s++)?(?:\x05?the\s++)?\x05?real(?:s|\s++\x05?numbers?)\s*+$)"
                                   R"(|\\mathbb\{R\}(?!\s*[\^_]))");
  static const TrustedRegex kPositive(R"(\\mathbb\{R\}\s*+(?:\^\s*+(?:\+|\{\s*+\+\s*+\})|_\s*+\{\s*+>\s*+0\s*+\}))"),
      kNotNegative(R"(\\mathbb\{R\}\s*+_\s*+\{\s*+(?:\\ge(?:q|qslant)?|>=)\s*+0\s*+\})");
  if (text.find("\\mathbb{R}") != std::string::npos)
    text = substituted(kNotNegative, substituted(kPositive, text, "(0,\\infty)"), "[0,\\infty)");
  if (text.find("\\{") != std::string::npos || text.find("empty") != std::string::npos) text = substituted(kNoMember, text, "\\emptyset ");
  if (text.find("\\mathbb") != std::string::npos || text.find("real") != std::string::npos) text = substituted(kReals, text,
      "(-\\infty,\\infty)");
  return text;
}

}  // namespace

std::string substituted(const Regex& pattern, const std::string& text, std::string_view by) {
  return pattern.replaced_in(text, [by](const Regex::Scan& match) {
    return std::string(by) + (match.num_groups() > 1 ? match.text(1) : "");
  });
}

size_t group_end(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t at = open; at < text.size(); ++at) {
    if (text[at] == '\\') ++at;
    else if (text[at] == '{') ++depth;
    else if (text[at] == '}' && --depth == 0) return at + 1;
  }
  return std::string_view::npos;
}

// 12,345 is a number. In brackets a comma separates, as in (20,100); what stands in them is read member by member.
std::string without_thousands(const std::string& text) {
  static const TrustedRegex kThousands(R"((?<![\d.,])\d{1,3}(?:,\d{3})++(?!,?\d))");
  std::string out;
  size_t begin = 0;
  int depth = 0;
  for (Regex::Scan scan(kThousands, text); scan.next();) {
    const text::Span span = scan.group();
    for (size_t i = begin; i < span.end; ++i) {
      if (opens(text, i)) ++depth;
      if (closes(text, i)) --depth;
      if (text[i] != ',' || i < span.begin || depth > 0) out += text[i];
    }
    begin = span.end;
  }
  return out + text.substr(begin);
}

std::string normal(std::string_view answer) {
  std::string s = text::is_utf8(answer) ? std::string(answer) : text::repair_utf8(answer);
  if (std::count(s.begin(), s.end(), '$') == 1 && s.find("\\$") == std::string::npos) s = replaced(s, "$", "\\$");  // it opens no formula
  s = Layout(with_commands(without_tight_commas(s))).read();
  static const TrustedRegex kAngle(R"((?:\{\})?\^\s*(?:\{\s*\x07\s*\}|\x07))");
  if (s.find(kDegree) != std::string::npos) s = substituted(kAngle, s, "\x07");
  s = with_usual_phrases(with_spelled_numbers(with_usual_signs(std::move(s))));
  if (s.find(kWord) != std::string::npos) s = with_plain_words(s);
  s = replaced(replaced(replaced(replaced(s, "{,}", ","), "{:}", ":"), "{.}", "."), "{=}", "=");
  s = exact_side(with_commas(with_both_bounds(with_plain_signs(with_sets_named(std::move(s))))));
  s = trimmed(s);
  if (s.size() > 4 && s.starts_with("**") && s.ends_with("**")) s = s.substr(2, s.size() - 4);  // bold
  s = without_wrapping(trimmed(s));
  while (!s.empty() && std::string_view(".,;:").find(s.back()) != std::string_view::npos && !s.ends_with("..") && !s.ends_with(".m."))
    s.pop_back();
  return trimmed(without_thousands(without_gaps_in_numbers(without_marks_in_numbers(without_wrapping(trimmed(s))))));
}

std::vector<std::string> split_outside_brackets(const std::string& text, std::string_view separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  const bool is_command = separator[0] == '\\';
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (depth == 0 && text.compare(i, separator.size(), separator) == 0 &&
        !(is_command && i + separator.size() < text.size() && is_letter(text[i + separator.size()]))) {
      parts.emplace_back();
      i += separator.size();
      continue;
    }
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    parts.back() += c;
    ++i;
  }
  for (std::string& part : parts) part = trimmed(part);
  return parts;
}

Bracketed bracketed(const std::string& text) {
  const bool is_set = text.starts_with("\\{") && text.ends_with("\\}");
  if (text.size() < 2 || (text[0] != '(' && text[0] != '[' && !is_set)) return {};
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (opens(text, i)) ++depth;
    if (closes(text, i) && --depth == 0)
      return i + 1 < text.size() ? Bracketed{} : is_set ? Bracketed{'{', '}', text.substr(2, text.size() - 4)}
                                                : Bracketed{text[0], text.back(), text.substr(1, text.size() - 2)};
  }
  return {};
}

}  // namespace tandem::reward
